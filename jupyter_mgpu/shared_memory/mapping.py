"""Memory mappings as memoryviews, which are unmapped when nothing looks at them any more.

Not the `mmap` module: before Python 3.13 each of its mappings holds a file descriptor.
"""

import ctypes
import functools
import mmap
import os
import sys
import weakref
from typing import Any

_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.restype = pointer
    libc.mmap.argtypes = (pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (pointer, size)
    libc.memcmp.argtypes = (pointer, pointer, size)
    return libc


def map_private(descriptor: int, size: int, *, writable: bool, block: Any = None) -> memoryview:
    """Map a whole file privately: what is written stays in this process.

    Args:
        descriptor: The open file; it may be closed afterwards.
        size: The file's size.
        writable: Whether the memory may be written.
        block: Kept alive by the mapping; see `block_of`.

    Raises:
        OSError: If it cannot be mapped.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    # A private mapping that may be written counts as memory in full, unless it says otherwise.
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    address = _libc().mmap(None, size, access, flags, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory.block = block
    weakref.finalize(memory, _libc().munmap, address, size).atexit = False
    return memoryview(memory).cast("B")


def block_of(frame: Any) -> Any:
    """Return the block of which a frame is a view, None for any other frame."""
    return getattr(getattr(frame, "obj", None), "block", None)


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
