"""Memory of this process that another one copies, where nobody can change it meanwhile.

That is the case of a result that its function has made. The system copies it once, into huge
pages. In a memfd it would be copied into small ones, each of which has to be found, cleared,
mapped and given back by itself.
"""

import ctypes
import errno
import functools
import itertools
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from jupyter_mgpu.shared_memory.mapping import address_of, block_of, map_anonymous
from jupyter_mgpu.shared_memory.threads import divided, in_threads, num_parts

Description = dict[str, Any]

_MARK_BYTES = 16
_probe = memoryview(bytearray(1))
_ALONE = sys.getrefcount(_probe.obj)
"""What Python counts where one object alone refers to another and it is asked like this."""


class _LentMemory:
    """Takes the place of a block.

    Args:
        buffer: Kept alive by this object.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer

    def describe(self) -> Description:
        """Say where it is, and how who copies it knows that it came from here."""
        mark = _mark(os.getpid())
        return {
            "pid": os.getpid(),
            "address": address_of(self._buffer),
            "size": self._buffer.nbytes,
            "mark": [ctypes.addressof(mark), mark.raw.hex()],
        }


@functools.cache
def _mark(_pid: int) -> "ctypes.Array[ctypes.c_char]":
    """Return bytes that tell this process from all others."""
    return ctypes.create_string_buffer(os.urandom(_MARK_BYTES), _MARK_BYTES)


def lend(buffer: memoryview, address: int) -> memoryview:
    """Return a view of a buffer that stands in for it like the view of a block."""
    memory: Any = (ctypes.c_ubyte * buffer.nbytes).from_address(address)
    memory.block = _LentMemory(buffer)
    return memoryview(memory).cast("B")


def is_lent(frame: Any) -> bool:
    """Tell whether a frame came from `lend`."""
    return isinstance(block_of(frame), _LentMemory)


def is_memory(description: Description) -> bool:
    """Tell whether a description is not of a block, but of memory to be copied."""
    return "pid" in description


def is_alone(view: memoryview) -> bool:
    """Tell whether nothing but a view refers to its memory, so that nobody can change it.

    Memory of objects other than arrays is as its `is_alone` says, where there is such a function.
    """
    if not is_only_reference(sys.getrefcount(view.obj)):
        return False
    tell = getattr(view.obj, "is_alone", None)
    if tell is not None:
        return bool(tell(view.obj))
    array: Any = view.obj
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    while type(array) is kind and not weakref.getweakrefcount(array):
        if array.base is None:
            return bool(array.flags.owndata)
        if not is_only_reference(sys.getrefcount(array.base)):
            return False
        array = array.base
    return False


def is_only_reference(count: int) -> bool:
    """Tell what `sys.getrefcount(owner.attribute)` means."""
    return count <= _ALONE


def copy_memory(description: Description) -> memoryview:
    """Copy memory of another process.

    Raises:
        OSError: If that is impossible, or that process has ended and another has its number.
    """
    pid, start, size = (description[name] for name in ("pid", "address", "size"))
    copy = map_anonymous(size)
    here = address_of(copy) or 0
    bounds = divided(size, num_parts(size))
    in_threads(
        [
            _copies(pid, start + low, here + low, high - low)
            for low, high in itertools.pairwise(bounds)
        ]
    )
    # Looked at last: it was that process all the time then.
    address, expected = description["mark"]
    mark = ctypes.create_string_buffer(_MARK_BYTES)
    in_threads([_copies(pid, address, ctypes.addressof(mark), _MARK_BYTES)])
    if mark.raw.hex() != expected:
        raise ProcessLookupError(errno.ESRCH, "is another process by now", str(pid))
    return copy


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


@functools.cache
def _reader() -> Any:
    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        raise OSError(errno.ENOSYS, "the C library cannot read another process") from None
    spans, number = ctypes.POINTER(_Span), ctypes.c_ulong
    read.argtypes = (ctypes.c_int, spans, number, spans, number, number)
    read.restype = ctypes.c_ssize_t
    return read


def _copies(pid: int, start: int, here: int, size: int) -> Iterator[None]:
    """Copy from an address of a process to one here, as much at a time as the system does."""
    done = 0
    while done < size:
        to, what = _Span(here + done, size - done), _Span(start + done, size - done)
        num_bytes = _reader()(pid, to, 1, what, 1, 0)
        if num_bytes <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), f"process {pid}")
        done += num_bytes
        yield
