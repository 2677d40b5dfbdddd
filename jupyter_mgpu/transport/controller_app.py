"""The pool's ipyparallel controller: one process, which ends with the pool's owner."""

import contextlib
import random
import secrets
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from jupyter_mgpu.on_engine import guard

LOWEST_PORT = 10_000  # well-known services are below
NUM_PORTS = 24  # ipyparallel 9 binds 19


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


def ports_that_stay_free(count: int) -> list[int]:
    """Find ports that nobody uses, outside of those that the system gives to connections.

    ipyparallel chooses its ports some time before it binds them, by default among those of
    connections, so that one is now and then taken by then, and the controller ends.

    Returns:
        `count` ports, or none where the system gives nearly all to connections.
    """
    range_file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest, highest = map(int, range_file.read_text().split())
    outside = [*range(LOWEST_PORT, lowest), *range(highest + 1, 65_536)]
    random.shuffle(outside)
    ports: list[int] = []
    for port in outside:
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    return []


def main() -> None:
    """Run the controller."""
    guard.exit_with_owner()
    from ipyparallel.controller import app
    from traitlets.config import Config

    app.Process = _HeartMonitor
    write_files_whole(app.IPController)
    # Where connections are encrypted ipyparallel leaves the signatures out, unless there is a key:
    # it lets everybody in who knows its own public key.
    session = {"key": secrets.token_hex(32).encode()}
    # Other hosts may be let through a firewall only to the ports of connections.
    is_local = "--ip=127.0.0.1" in sys.argv
    ports = {"ports": ports_that_stay_free(NUM_PORTS) if is_local else []}
    app.main(config=Config({"Session": session, "IPController": ports}))


if __name__ == "__main__":
    main()
