"""Find, for a tensor or array that is new to an engine, one there that shares its memory."""

from collections.abc import Callable, Mapping
from typing import Any

from jupyter_mgpu.packing.contents import Content, content
from jupyter_mgpu.packing.handles import HandleTable, is_array, is_tensor
from jupyter_mgpu.packing.tensors import is_plain

_PLAIN_KINDS = "biufc"


class Aliases:
    """What an engine has that other tensors and arrays of the kernel may be views of.

    Args:
        handles: The kernel's tensors and arrays by number.
        contents: By handle, what the engine was sent.
    """

    def __init__(self, handles: HandleTable, contents: Mapping[int, Content]) -> None:
        self._handles = handles
        self._contents = contents
        self._by_storage: dict[int, list[tuple[int, Any]]] | None = None

    def tensor_base(self, tensor: Any) -> tuple[int, Any] | None:
        """Find a tensor on the engine whose memory holds all of this one's."""
        if self._by_storage is None:
            self._by_storage = self._index()
        start, end = _extent(tensor)
        for number, base in self._by_storage.get(_storage_id(tensor), ()):
            first, last = _extent(base)
            if first <= start and end <= last and self._is_current(number, base):
                return number, base
        return None

    def array_base(self, array: Any, is_in_stream: Callable[[int], bool]) -> tuple[int, Any] | None:
        """Find the array that this one is a view of, if the engine has it or gets it."""
        base = array.base
        if not is_array(base) or not base.flags.c_contiguous or not base.flags.writeable:
            return None
        if array.dtype.kind not in _PLAIN_KINDS or base.dtype.kind not in _PLAIN_KINDS:
            return None
        number = self._handles.number(base)
        if is_in_stream(number) or self._is_current(number, base):
            return number, base
        return None

    def _is_current(self, number: int, base: Any) -> bool:
        return number in self._contents and self._contents[number] == content(base)

    def _index(self) -> dict[int, list[tuple[int, Any]]]:
        found: dict[int, list[tuple[int, Any]]] = {}
        for number in self._contents:
            base = self._handles.get(number)
            if is_tensor(base) and is_plain(base):
                found.setdefault(_storage_id(base), []).append((number, base))
        return found


def array_offset(array: Any, base: Any) -> int:
    """Return how many bytes after its base's start an array starts."""
    starts = [each.__array_interface__["data"][0] for each in (array, base)]
    offset: int = starts[0] - starts[1]
    return offset


def _storage_id(tensor: Any) -> int:
    address: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - its address
    return address


def _extent(tensor: Any) -> tuple[int, int]:
    """Return the bytes of its storage that a tensor spans."""
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    start = tensor.storage_offset() * tensor.element_size()
    return start, start + (last + 1 if tensor.numel() else 0) * tensor.element_size()
