"""Memory mappings as memoryviews, which are unmapped when nothing looks at them any more.

Not the `mmap` module: before Python 3.13 each of its mappings holds a file descriptor.
"""

import ctypes
import functools
import itertools
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from typing import Any

_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10  # of Linux, where alone blocks are used; the mmap module does not name it


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.restype = pointer
    libc.mmap.argtypes = (pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (pointer, size)
    libc.madvise.argtypes = (pointer, size, ctypes.c_int)
    libc.memcmp.argtypes = (pointer, pointer, size)
    return libc


def map_anonymous(size: int) -> memoryview:
    """Map new memory that can be written, in huge pages where there are such.

    Raises:
        OSError: If there is no memory.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _map(None, size, access, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    memory = _memory(address, size)
    _libc().madvise(address, size, mmap.MADV_HUGEPAGE)  # else a page fault for every 4 KiB
    return memoryview(memory).cast("B")


def map_private(
    files: Sequence[tuple[int, int]], *, writable: bool, block: Any = None
) -> memoryview:
    """Map whole files privately, one behind the other: what is written stays in this process.

    Args:
        files: Open files, which may be closed afterwards, with their sizes in bytes; all but the
            last one consist of whole pages.
        writable: Whether the memory may be written.
        block: Kept alive by the mapping; see `block_of`.

    Raises:
        OSError: If they cannot be mapped.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    # A private mapping that may be written counts as memory in full, unless it says otherwise.
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    size = sum(size for _, size in files)
    if len(files) == 1:
        address = _map(None, size, access, flags, files[0][0])
    else:  # the first mapping keeps the place, the others are laid over it
        address = _map(None, size, 0, flags | mmap.MAP_ANONYMOUS, -1)
    memory = _memory(address, size)
    memory.block = block
    if len(files) > 1:
        starts = itertools.accumulate((size for _, size in files), initial=address)
        for start, (descriptor, part) in zip(starts, files, strict=False):
            _map(start, part, access, flags | _MAP_FIXED, descriptor)
    return memoryview(memory).cast("B")


def _memory(address: int, size: int) -> Any:
    """Return the memory of a mapping, which is unmapped when the object goes."""
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _libc().munmap, address, size).atexit = False
    return memory


def _map(address: int | None, size: int, access: int, flags: int, descriptor: int) -> int:
    result: int = _libc().mmap(address, size, access, flags, descriptor, 0)
    if result == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def block_of(frame: Any) -> Any:
    """Return the block of which a frame is a view, None for any other frame."""
    return getattr(getattr(frame, "obj", None), "block", None)


def memory_of(view: Any) -> memoryview:
    """Return the whole mapping of which a frame is a view."""
    return memoryview(view.obj).cast("B")


def is_shared(frame: Any) -> bool:
    """Tell whether a frame is a view of a block of this process."""
    return block_of(frame) is not None


def address_of(view: memoryview) -> int | None:
    """Return where a view's memory begins; None where that cannot be told."""
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    numpy = sys.modules.get("numpy")  # what is large and cannot be written is nearly always its own
    if numpy is None:
        return None
    address: int = numpy.frombuffer(view, dtype=numpy.uint8).ctypes.data
    return address


def span_of(view: Any) -> tuple[int, int]:
    """Return where in its mapping a view begins, and its size."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(view)) - ctypes.addressof(view.obj)
    return start, view.nbytes


def is_equal(address: int, view: memoryview) -> bool:
    """Tell whether the memory at an address holds the same bytes as a view of a mapping."""
    return not _libc().memcmp(address, address_of(view), view.nbytes)
