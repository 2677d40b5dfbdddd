"""The pool's ipyparallel controller: one process, which ends with the pool's owner."""

import threading

from jupyter_mgpu.on_engine import guard


class _HeartMonitor(threading.Thread):
    """Stands where ipyparallel starts a process, which would outlive a killed controller."""

    def terminate(self) -> None:
        """Do nothing: it ends with this process."""


def main() -> None:
    """Run the controller."""
    guard.exit_with_owner()
    from ipyparallel.controller import app

    app.Process = _HeartMonitor
    app.main()


if __name__ == "__main__":
    main()
