"""The pickler: which object becomes what."""

import copyreg
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any

import cloudpickle
from cloudpickle.cloudpickle import _should_pickle_by_reference

from jupyter_mgpu.packing import classes, exceptions, functions, tensors
from jupyter_mgpu.packing.loaded import loaded

_table: dict[Any, Any] = {}
_num_registered = -1


def _dispatch_table() -> dict[Any, Any]:
    """Return cloudpickle's table and copyreg's as one dict, which pickle searches fastest."""
    global _table, _num_registered
    if len(copyreg.dispatch_table) != _num_registered:
        _num_registered = len(copyreg.dispatch_table)
        _table = dict(cloudpickle.Pickler.dispatch_table)
    return _table


class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle is untyped
    """A cloudpickle pickler that keeps sources, shares storages and survives odd exceptions.

    Args:
        file: Where the stream goes.
        buffer_callback: Receives each buffer that may travel apart, as pickle defines it.
        compact: Storages, by address, of which only the part that is used is sent.
    """

    view = ""
    carries_sources = True

    def __init__(
        self,
        file: IO[bytes],
        buffer_callback: Callable[[Any], Any] | None = None,
        compact: frozenset[int] = frozenset(),
    ) -> None:
        self.dispatch_table = _dispatch_table()
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.sources_sent: set[str] = set()
        self.storages = tensors.Storages(compact)
        # An object of torch's exists only where torch was imported.
        self._torch = loaded("torch")
        self._tensor_type = getattr(self._torch, "Tensor", None)

    def reducer_override(self, obj: Any) -> Any:
        """Say how an object that is no builtin container or number is taken apart."""
        kind = type(obj)
        if kind is OrderedDict:  # a network has thousands
            return NotImplemented
        if kind is types.FunctionType:
            return self.reduce_function(obj)
        if kind is types.CodeType:
            return functions.reduce_code(obj, self.sources_sent if self.carries_sources else None)
        if issubclass(kind, type):
            return classes.reduce_class(obj, self.view)
        if self._tensor_type is not None and isinstance(obj, self._tensor_type):
            return self.reduce_tensor(obj)
        return self.reduce_other(obj)

    def reduce_function(self, function: types.FunctionType) -> Any:
        """Reduce a function: by reference where it can be imported, else by value."""
        if _should_pickle_by_reference(function):
            return NotImplemented
        return functions.reduce_function(function, self.globals_ref)

    def reduce_tensor(self, tensor: Any) -> Any:
        """Reduce a tensor of any class."""
        return tensors.reduce_tensor(tensor, self.storages)

    def reduce_other(self, obj: Any) -> Any:
        """Reduce what is neither code nor class nor tensor."""
        if isinstance(obj, BaseException):
            return exceptions.reduce_exception(obj)
        if self._torch is not None and isinstance(
            obj, self._torch.UntypedStorage | self._torch.storage.TypedStorage
        ):
            return tensors.reduce_storage(obj, self.storages)
        if obj is sys.stdout or obj is sys.stderr:
            return getattr, (sys, "stdout" if obj is sys.stdout else "stderr")
        return NotImplemented
