"""Memory of this process that another one copies for itself, where nobody can change it meanwhile.

A result that its function made is the common case: nobody else refers to it. It is copied once,
by the system and into huge pages; what goes through a memfd is copied into small pages, which have
to be found, given to the file and mapped by its reader one by one.
"""

import ctypes
import errno
import functools
import mmap
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from jupyter_mgpu import host
from jupyter_mgpu.shared_memory.mapping import address_of, map_anonymous
from jupyter_mgpu.shared_memory.threads import in_threads

Description = dict[str, Any]

MOST_THREADS = 4
LEAST_BYTES_OF_A_THREAD = 4 * 2**20
_MARK_BYTES = 16
_probe = memoryview(bytearray(1))
_ALONE = sys.getrefcount(_probe.obj)
"""What the system counts where only one object refers to another; versions of Python differ."""


class LentMemory:
    """A buffer that is read where it is.

    Args:
        buffer: Kept alive by this object.
    """

    is_file = False

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer

    def describe(self) -> Description:
        """Say where it is, and how who reads it knows that it was this process."""
        mark = _mark(os.getpid())
        return {
            "pid": os.getpid(),
            "address": address_of(self._buffer),
            "size": self._buffer.nbytes,
            "mark": [ctypes.addressof(mark), mark.raw.hex()],
        }


@functools.cache
def _mark(_pid: int) -> "ctypes.Array[ctypes.c_char]":
    """Return bytes that only this process has at their place; a forked child makes its own."""
    return ctypes.create_string_buffer(os.urandom(_MARK_BYTES), _MARK_BYTES)


def lend(buffer: memoryview) -> memoryview:
    """Return a view of a buffer as of a block; see `block_of`."""
    memory: Any = (ctypes.c_ubyte * buffer.nbytes).from_address(address_of(buffer) or 0)
    memory.block = LentMemory(buffer)
    return memoryview(memory).cast("B")


def is_lent(block: Any) -> bool:
    """Tell whether it is no block, but memory of a process."""
    return isinstance(block, LentMemory)


def is_alone(view: memoryview) -> bool:
    """Tell whether nothing but a view refers to its memory, so that nobody can write there."""
    if sys.getrefcount(view.obj) > _ALONE:
        return False
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    array: Any = view.obj
    while type(array) is kind and not weakref.getweakrefcount(array):
        if array.base is None:
            return bool(array.flags.owndata)
        if sys.getrefcount(array.base) > _ALONE:
            return False
        array = array.base
    return False


@functools.cache
def _read() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    read = libc.process_vm_readv
    read.restype = ctypes.c_ssize_t
    number = ctypes.c_ulong
    read.argtypes = (ctypes.c_int, ctypes.POINTER(_Span), number, ctypes.POINTER(_Span), number, number)
    return read


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def copy_lent(description: Description) -> memoryview:
    """Copy the memory of another process.

    Raises:
        OSError: If it cannot be read, or another process has taken the place of that one.
    """
    pid, start, size = (description[name] for name in ("pid", "address", "size"))
    copy = map_anonymous(size)
    here = address_of(copy) or 0
    wanted = max(1, size // LEAST_BYTES_OF_A_THREAD)
    threads = min(wanted, MOST_THREADS, host.num_cores()) if wanted > 1 else 1
    step = -(-size // threads // mmap.PAGESIZE) * mmap.PAGESIZE
    in_threads(
        [
            _copies(pid, start + low, here + low, min(step, size - low))
            for low in range(0, size, step)
        ]
    )
    address, expected = description["mark"]
    mark = ctypes.create_string_buffer(_MARK_BYTES)
    for _ in _copies(pid, address, ctypes.addressof(mark), _MARK_BYTES):
        pass
    if mark.raw.hex() != expected:
        raise FileNotFoundError(errno.ENOENT, "another process has this number by now", str(pid))
    return copy


def _copies(pid: int, start: int, here: int, size: int) -> Iterator[None]:
    done = 0
    while done < size:
        mine, theirs = _Span(here + done, size - done), _Span(start + done, size - done)
        number = _read()(pid, mine, 1, theirs, 1, 0)
        if number <= 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), f"memory of process {pid}")
        done += number
        yield
