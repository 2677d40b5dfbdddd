"""Ports for servers that a test starts."""

import contextlib
import random
import socket

LOWEST, HIGHEST = 10_000, 32_000


def free_port() -> int:
    """Find a port that stays free until a server has it.

    It lies below those that the system gives away by itself: such a one is often another process's
    by the time at which the server wants it.
    """
    while True:
        port = random.randint(LOWEST, HIGHEST)
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            return port
