"""The pool's ipyparallel controller: one process, which ends with the pool's owner."""

import secrets
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
    from traitlets.config import Config

    app.Process = _HeartMonitor
    # Where connections are encrypted ipyparallel leaves the signatures out, unless there is a key:
    # it lets everybody in who knows its own public key.
    app.main(config=Config({"Session": {"key": secrets.token_hex(32).encode()}}))


if __name__ == "__main__":
    main()
