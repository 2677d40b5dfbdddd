"""The TCP sockets of process groups and stores: found, watched, and shut down to free a rank.

A rank that is blocked in a gloo collective is freed by nothing that torch offers; shutting its
sockets down makes the call return with an error. torch does not say which sockets are gloo's,
so the process's sockets are compared before and after a group is made.
"""

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Kind = Literal["group", "store"]
"""`group`: a process group's own, ended with it. `store`: a store that the user has made."""

_FD_FOLDERS = (Path("/proc/self/fd"), Path("/dev/fd"))
_BYTES_ACKED_OFFSET = 120
"""Where struct tcp_info of linux/tcp.h holds tcpi_bytes_acked; tcpi_bytes_received follows."""


def open_tcp_sockets() -> dict[int, int]:
    """List this process's connected TCP sockets: inode -> file descriptor."""
    found: dict[int, int] = {}
    for fd in _open_fds():
        with _borrowed(fd) as sock:
            if sock is not None and _is_connected_tcp(sock):
                found[os.fstat(sock.fileno()).st_ino] = fd
    return found


class SocketTracker:
    """Remembers which sockets were opened while a group or a store was made."""

    def __init__(self) -> None:
        self._kinds: dict[int, Kind] = {}
        self._building: list[frozenset[int]] = []

    @contextlib.contextmanager
    def tracking(self, kind: Kind) -> Iterator[None]:
        """Track the sockets that the body opens.

        Args:
            kind: What the sockets are for.
        """
        before = frozenset(open_tcp_sockets())
        self._building.append(before)
        try:
            yield
        finally:
            opened = open_tcp_sockets().keys() - before
            self._kinds.update(dict.fromkeys(opened, kind))
            self._building.remove(before)

    def shut_down(self, *kinds: Kind) -> int:
        """Shut down the tracked sockets of these kinds. Callable from any thread.

        Args:
            *kinds: Without any, all of them, and those in the making.

        Returns:
            How many sockets were shut down.
        """
        if not self._kinds and not self._building:
            return 0
        count = 0
        for inode, fd in open_tcp_sockets().items():
            if self._kinds.get(inode) in kinds if kinds else self._is_ours(inode):
                count += _shut_down(fd, inode)
        return count

    def moved_bytes(self) -> int | None:
        """Count the bytes that went through the tracked sockets, or None where unknown."""
        if sys.platform != "linux":
            return None
        total = 0
        for inode, fd in open_tcp_sockets().items():
            if self._is_ours(inode):
                total += _moved_bytes(fd)
        return total

    def forget_closed(self) -> None:
        """Drop the inodes whose sockets are gone."""
        still_open = open_tcp_sockets().keys()
        self._kinds = {inode: kind for inode, kind in self._kinds.items() if inode in still_open}

    def _is_ours(self, inode: int) -> bool:
        return inode in self._kinds or any(inode not in before for before in list(self._building))


def _open_fds() -> list[int]:
    for folder in _FD_FOLDERS:
        with contextlib.suppress(OSError):
            return [int(name) for name in os.listdir(folder)]  # noqa: PTH208  5x faster here
    return []


@contextlib.contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket | None]:
    """A socket on a copy of the descriptor, or None if it is gone or no socket."""
    try:
        copy = os.dup(fd)
    except OSError:
        yield None
        return
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        yield None
        return
    with sock:
        yield sock


def _is_connected_tcp(sock: socket.socket) -> bool:
    is_tcp = sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6)
    if not is_tcp:
        return False
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _shut_down(fd: int, inode: int) -> int:
    with _borrowed(fd) as sock:
        # The descriptor may belong to another socket by now.
        if sock is None or os.fstat(sock.fileno()).st_ino != inode:
            return 0
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return 0
    return 1


def _moved_bytes(fd: int) -> int:
    with _borrowed(fd) as sock:
        if sock is None:
            return 0
        try:
            raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_OFFSET + 16)
            acked, received = struct.unpack_from("=QQ", raw, _BYTES_ACKED_OFFSET)
        except (OSError, struct.error):
            return 0
    return int(acked) + int(received)
