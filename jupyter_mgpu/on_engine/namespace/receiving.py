"""What a stream of names calls on the engine to rebuild functions, tensors and arrays."""

import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from jupyter_mgpu.packing.handles import HandleTable, is_array, is_tensor
from jupyter_mgpu.packing.tensors import rebuild_tensor

_current = threading.local()


class Receiving:
    """The receipt of one stream; a context manager around unpickling it.

    Args:
        user_ns: The namespace that the stream's functions belong to.
        handles: The engine's tensors and arrays by number.
    """

    def __init__(self, user_ns: dict[str, Any], handles: HandleTable) -> None:
        self.user_ns = user_ns
        self.handles = handles
        self.arrived: dict[int, Any] = {}
        self._copies: list[tuple[Any, Any]] = []

    def __enter__(self) -> "Receiving":
        _current.receiving = self
        return self

    def __exit__(self, *details: object) -> None:
        _current.receiving = None

    def replace_later(self, target: Any, value: Any) -> None:
        """Copy new data into an object the engine has, once the whole stream is read."""
        self._copies.append((target, value))

    def finish(self) -> None:
        """Register what arrived, and copy the data that is new in place."""
        for number, obj in self.arrived.items():
            self.handles.register(number, obj)
        for target, value in self._copies:
            _copy_into(target, value)


def namespace_function(
    code: types.CodeType, closure: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    """Make a function whose globals are the engine's namespace."""
    return types.FunctionType(code, _receiving().user_ns, None, None, closure)


def by_handle(number: int) -> Any:
    """Return the tensor or array that was sent before under this number."""
    receiving = _receiving()
    obj = receiving.arrived.get(number)
    if obj is None:
        obj = receiving.handles.get(number)
    if obj is None:
        raise LookupError(f"This engine no longer has the tensor or array number {number}.")
    return obj


def arrived(number: int, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Rebuild a tensor or array and remember its number."""
    obj = make(*arguments)
    _receiving().arrived[number] = obj
    return obj


def updated(number: int, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Rebuild new data for a tensor or array that the engine has, to be copied into it."""
    target, value = by_handle(number), make(*arguments)
    if not _fits(target, value):
        _receiving().arrived[number] = value
        return value
    _receiving().arrived[number] = target
    _receiving().replace_later(target, value)
    return target


def tensor_view(
    number: int, base_number: int, base_start: int, dtype: Any, offset: int, *arguments: Any
) -> Any:
    """Make a tensor on the memory of one that the engine has.

    Args:
        number: The new tensor's number.
        base_number: That of the tensor whose memory it uses.
        base_start: Where in the kernel's storage that tensor starts, in bytes.
        dtype: The new tensor's dtype.
        offset: Where in the kernel's storage it starts, in elements.
        *arguments: The others of `rebuild_tensor`.
    """
    base = by_handle(base_number)
    # A storage may have been sent in part: what counts is the place relative to the base.
    moved = base.storage_offset() * base.element_size() - base_start
    place = offset + moved // dtype.itemsize
    return arrived(number, rebuild_tensor, (base.untyped_storage(), dtype, place, *arguments))


def array_view(
    number: int, base_number: int, offset: int, shape: Any, strides: Any, dtype: Any
) -> Any:
    """Make an array on the memory of one that the engine has."""
    numpy = sys.modules["numpy"]
    keywords = {"buffer": by_handle(base_number), "offset": offset, "strides": strides}
    return arrived(number, functools.partial(numpy.ndarray, **keywords), (shape, dtype))


def with_state(make: Callable[..., Any], arguments: tuple[Any, ...], state: Any) -> Any:
    """Rebuild an object whose reducer hands over a state."""
    obj = make(*arguments)
    obj.__setstate__(state)
    return obj


def _receiving() -> Receiving:
    receiving: Receiving | None = getattr(_current, "receiving", None)
    if receiving is None:
        raise RuntimeError("A stream of names can only be read into a namespace.")
    return receiving


def _fits(target: Any, value: Any) -> bool:
    if is_array(target) and is_array(value):
        is_alike = target.shape == value.shape and target.dtype == value.dtype
        return bool(is_alike and target.flags.writeable)
    if is_tensor(target) and is_tensor(value):
        is_alike = target.dtype == value.dtype and target.layout == value.layout
        return bool(is_alike and type(target) is type(value))
    return False


def _copy_into(target: Any, value: Any) -> None:
    if is_array(target):
        target[...] = value
        return
    torch = sys.modules["torch"]
    with torch.no_grad():
        if target.shape == value.shape:
            target.detach().copy_(value)
        else:
            target.data = value.detach()
    if target.is_leaf:
        target.requires_grad_(value.requires_grad)
