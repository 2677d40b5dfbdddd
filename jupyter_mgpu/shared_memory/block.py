"""One block: files without a name, or one with a name, that other processes of this host map."""

import contextlib
import errno
import fcntl
import itertools
import os
import resource
import stat
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_mgpu import host
from jupyter_mgpu.shared_memory.mapping import map_private
from jupyter_mgpu.shared_memory.threads import divided, in_threads, num_parts

Description = dict[str, Any]

_NAME = "mgpu"
_ALIGN_BYTES = 64  # a cache line, which is also what vector instructions want
_WRITE_BYTES = 32 * 2**20
"""One write: a Stop waits for it."""
MOST_BLOCKS = 1000
_NOEXEC_SEAL = 8  # MFD_NOEXEC_SEAL: some systems require it, those before Linux 6.3 refuse it


@dataclass(slots=True)
class _Part:
    """One of the files that a block consists of."""

    descriptor: int
    size: int = 0
    inode: int = 0

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Block:
    """Files that this process shares as one piece of memory; they go when the object does.

    Args:
        descriptors: The open files, one behind the other. The system writes to a file in one
            thread at a time, so that several are filled in less time.
        path: The name of the file, where there is one.
        is_sealed: Whether they are memfds that nobody can change any more.
    """

    __slots__ = ("__weakref__", "_is_sealed", "_parts", "_path", "_pid")

    def __init__(
        self, descriptors: Sequence[int], path: Path | None = None, *, is_sealed: bool = True
    ) -> None:
        self._parts = [_Part(descriptor) for descriptor in descriptors]
        self._path = path
        self._is_sealed = is_sealed
        self._pid = os.getpid()
        _blocks.add(self)

    @property
    def is_file(self) -> bool:
        """Whether it lies in a file system, and not in memory alone."""
        return not self._is_sealed

    @property
    def num_descriptors(self) -> int:
        """How many files it keeps open, or had open."""
        return len(self._parts)

    def fill(self, buffers: Sequence[bytes | memoryview]) -> list[memoryview]:
        """Write buffers into the new files, and return their views in the block.

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
        bounds = divided(starts[-1], len(self._parts))
        for part, (low, high) in zip(self._parts, itertools.pairwise(bounds), strict=True):
            part.size = high - low
            if self._path is not None:
                os.posix_fallocate(part.descriptor, 0, part.size)  # a full disk shows here
            else:
                os.ftruncate(part.descriptor, part.size)
        placed = [(start, memoryview(b)) for start, b in zip(starts, buffers, strict=False)]
        in_threads(
            [
                _writes(part.descriptor, placed, *ends)
                for part, ends in zip(self._parts, itertools.pairwise(bounds), strict=True)
            ]
        )
        self._finish()
        files = [(part.descriptor, part.size) for part in self._parts]
        whole = map_private(files, writable=False, block=self)
        if self._path is not None:
            self._close_parts()
        return [whole[start : start + buffer.nbytes] for start, buffer in placed]

    def _finish(self) -> None:
        """Let nobody change the files any more, and take note of which they are."""
        for part in self._parts:
            if self._path is None:
                seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
                fcntl.fcntl(part.descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
            part.inode = os.fstat(part.descriptor).st_ino

    def write(self, start: int, piece: bytes | memoryview) -> None:
        """Write a piece of what is to come into a new block of one memfd.

        Raises:
            OSError: If there is no room for it.
        """
        part = self._parts[0]
        part.size = max(part.size, start + len(piece))
        while piece:
            done = os.pwrite(part.descriptor, piece, start)
            start, piece = start + done, piece[done:]

    def finish(self) -> Description:
        """Seal a block that was written in pieces, and describe it."""
        self._finish()
        return self.describe()

    def holds(self, description: Description) -> None:
        """Take note of what is in its files, as another process has described it."""
        for own, part in zip(self._parts, description["parts"], strict=True):
            own.size, own.inode = part["size"], part["inode"]

    def describe(self) -> Description:
        """Say how another process finds it, and how that knows that it has found it."""
        return {
            "sealed": self._is_sealed,
            "parts": [
                {
                    "path": str(self._path or f"/proc/{self._pid}/fd/{part.descriptor}"),
                    "inode": part.inode,
                    "size": part.size,
                }
                for part in self._parts
            ],
        }

    def close(self) -> None:
        """Let go of it; mappings of it stay."""
        self._close_parts()
        if self._path is not None and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _close_parts(self) -> None:
        for part in self._parts:
            part.close()

    def __del__(self) -> None:
        self.close()


def _writes(
    descriptor: int, placed: Sequence[tuple[int, memoryview]], low: int, high: int
) -> Iterator[None]:
    """Write what lies between two places of a block into the file for them, a piece at a time."""
    # Written, not copied into a mapping: where memory or disk ends, that is an error and
    # no SIGBUS.
    for start, buffer in placed:
        done, end = max(low - start, 0), min(high - start, buffer.nbytes)
        while done < end:
            piece = buffer[done : min(done + _WRITE_BYTES, end)]
            done += os.pwrite(descriptor, piece, start + done - low)
            yield


_blocks: weakref.WeakSet[Block] = weakref.WeakSet()


def num_open() -> int:
    """Count the files of this process's blocks."""
    return sum(block.num_descriptors for block in list(_blocks))


def new_block(path: Path | None = None, *, num_bytes: int = 0) -> Block:
    """Make an empty block: a file of that name, or memfds.

    Args:
        path: The file's name; without one they are memfds.
        num_bytes: What will be put in: from some size on, several files are worth it.

    Raises:
        OSError: If it cannot be made.
    """
    if path is not None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return Block([os.open(path, flags, 0o600)], path, is_sealed=False)
    with contextlib.ExitStack() as opened:
        descriptors = []
        for _ in range(num_parts(num_bytes)):
            descriptors.append(_new_memfd())
            opened.callback(os.close, descriptors[-1])
        opened.pop_all()
    return Block(descriptors)


def _new_memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(_NAME, flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(_NAME, flags)


def may_hold_more() -> bool:
    """Tell whether there are descriptors for another block: most are the user's own."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_BLOCKS if soft == resource.RLIM_INFINITY else min(MOST_BLOCKS, soft // 4)
    return num_open() < most


def open_block(description: Description, *, holds: bool = False) -> memoryview:
    """Map another process's block; it can be written, which that process does not see.

    Args:
        description: What `Block.describe` gave there.
        holds: Keep its files open as a block of this process, which can be lent to others also
            when that process has ended; as far as there are descriptors.

    Raises:
        OSError: If it cannot be opened, or another file has taken its place.
    """
    if description.get("boot") not in (None, host.boot_id()):
        raise FileNotFoundError(errno.ENOENT, "is on another host", description["parts"][0]["path"])
    with contextlib.ExitStack() as opened:
        files = []
        for part in description["parts"]:
            descriptor = _open(part["path"])
            opened.callback(os.close, descriptor)
            _check(descriptor, part, is_sealed=description["sealed"])
            files.append((descriptor, part["size"]))
        if not (holds and may_hold_more()):
            return map_private(files, writable=True)
        opened.pop_all()
        block = Block([descriptor for descriptor, _ in files], is_sealed=description["sealed"])
        block.holds(description)
        return map_private(files, writable=True, block=block)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _check(descriptor: int, part: Description, *, is_sealed: bool) -> None:
    status = os.fstat(descriptor)
    found = (status.st_ino, status.st_size, stat.S_ISREG(status.st_mode))
    is_same = found == (part["inode"], part["size"], True)
    # Unsealed, it could be shortened, and reading it end this process.
    if is_same and is_sealed:
        is_same = bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    if not is_same:
        raise FileNotFoundError(errno.ENOENT, "is another file by now", part["path"])


def _aligned(size: int) -> int:
    return -(-size // _ALIGN_BYTES) * _ALIGN_BYTES


def _after_fork() -> None:
    """Let a forked child drop its copies of the descriptors: they would keep the memory."""
    for block in list(_blocks):
        block._close_parts()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
