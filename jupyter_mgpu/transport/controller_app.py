"""The pool's ipyparallel controller: one process, which ends with the pool's owner."""

import secrets
import threading
from pathlib import Path
from typing import Any

from jupyter_mgpu.on_engine import guard


class _HeartMonitor(threading.Thread):
    """Stands where ipyparallel starts a process, which would outlive a killed controller."""

    def terminate(self) -> None:
        """Do nothing: it ends with this process."""


def write_files_whole(controller: Any) -> None:
    """Have a class of controllers put its files in place when they are complete: others wait."""
    write = controller.save_connection_dict

    def write_beside(self: Any, name: str, connection: Any) -> None:
        write(self, f"{name}.part", connection)
        file = Path(self.profile_dir.security_dir, name)
        Path(f"{file}.part").replace(file)

    controller.save_connection_dict = write_beside


def main() -> None:
    """Run the controller."""
    guard.exit_with_owner()
    from ipyparallel.controller import app
    from traitlets.config import Config

    app.Process = _HeartMonitor
    write_files_whole(app.IPController)
    # Where connections are encrypted ipyparallel leaves the signatures out, unless there is a key:
    # it lets everybody in who knows its own public key.
    app.main(config=Config({"Session": {"key": secrets.token_hex(32).encode()}}))


if __name__ == "__main__":
    main()
