"""One block: a file without a name, or with one, that other processes of this host can map."""

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_mgpu.shared_memory.mapping import map_private

Description = dict[str, Any]

_NAME = "mgpu"
_ALIGN_BYTES = 64  # a cache line, which is also what vector instructions want
_WRITE_BYTES = 32 * 2**20
"""One write: a Stop waits for it."""
_NOEXEC_SEAL = 8  # MFD_NOEXEC_SEAL: some systems require it, those before Linux 6.3 refuse it


class Block:
    """A file that this process shares; it goes when the object does.

    Args:
        descriptor: The open file.
        path: Its name, for a file that has one.
    """

    __slots__ = ("__weakref__", "_descriptor", "_inode", "_path", "_pid", "_size")

    def __init__(self, descriptor: int, path: Path | None = None) -> None:
        self._descriptor = descriptor
        self._path = path
        self._pid = os.getpid()
        self._inode = self._size = 0
        _blocks.add(self)

    @property
    def is_file(self) -> bool:
        """Whether it has a name."""
        return self._path is not None

    def fill(self, buffers: Sequence[bytes | memoryview]) -> list[memoryview]:
        """Write buffers into the new file, and return their views in it.

        Raises:
            OSError: If there is no room for them.
        """
        try:
            return self._fill(buffers)
        except BaseException:
            self.close()  # now: after a Stop, IPython keeps the traceback and us in it
            raise

    def _fill(self, buffers: Sequence[bytes | memoryview]) -> list[memoryview]:
        starts = list(itertools.accumulate((_aligned(len(b)) for b in buffers), initial=0))
        if self._path is not None:
            os.posix_fallocate(self._descriptor, 0, starts[-1])  # a full disk shows here
        else:
            os.ftruncate(self._descriptor, starts[-1])
        for start, buffer in zip(starts, buffers, strict=False):
            self._write(memoryview(buffer), start)
        if self._path is None:
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
        status = os.fstat(self._descriptor)
        self._inode, self._size = status.st_ino, status.st_size
        whole = map_private(self._descriptor, self._size, writable=False, block=self)
        if self._path is not None:
            self._close_descriptor()
        return [
            whole[start : start + len(buffer)]
            for start, buffer in zip(starts, buffers, strict=False)
        ]

    def _write(self, buffer: memoryview, start: int) -> None:
        # Written, not copied into a mapping: where memory or disk ends, that is an error and
        # no SIGBUS.
        done = 0
        while done < buffer.nbytes:
            part = buffer[done : done + _WRITE_BYTES]
            done += os.pwrite(self._descriptor, part, start + done)

    def describe(self) -> Description:
        """Say how another process finds it, and how that knows that it has found it."""
        path = str(self._path) if self._path else f"/proc/{self._pid}/fd/{self._descriptor}"
        return {"path": path, "inode": self._inode, "size": self._size, "sealed": not self._path}

    def close(self) -> None:
        """Let go of it; mappings of it stay."""
        self._close_descriptor()
        if self._path is not None and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


_blocks: weakref.WeakSet[Block] = weakref.WeakSet()


def num_open() -> int:
    """Count the blocks of this process."""
    return len(_blocks)


def new_block(path: Path | None = None) -> Block:
    """Make an empty block: a file of that name, or a memfd.

    Raises:
        OSError: If it cannot be made.
    """
    if path is None:
        return Block(_new_memfd())
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return Block(os.open(path, flags, 0o600), path)


def _new_memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(_NAME, flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(_NAME, flags)


def open_block(description: Description) -> memoryview:
    """Map another process's block; it can be written, which that process does not see.

    Raises:
        OSError: If it cannot be opened, or another file has taken its place.
    """
    descriptor = _open(description["path"])
    try:
        _check(descriptor, description)
        return map_private(descriptor, description["size"], writable=True)
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _check(descriptor: int, description: Description) -> None:
    status = os.fstat(descriptor)
    found = (status.st_ino, status.st_size, stat.S_ISREG(status.st_mode))
    is_same = found == (description["inode"], description["size"], True)
    # Unsealed, it could be shortened, and reading it end this process.
    if is_same and description["sealed"]:
        is_same = bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    if not is_same:
        raise FileNotFoundError(errno.ENOENT, "is another file by now", description["path"])


def _aligned(size: int) -> int:
    return -(-size // _ALIGN_BYTES) * _ALIGN_BYTES


def _after_fork() -> None:
    """Let a forked child drop its copies of the descriptors: they would keep the memory."""
    for block in list(_blocks):
        block._close_descriptor()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
