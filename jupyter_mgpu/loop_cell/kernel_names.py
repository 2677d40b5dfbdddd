"""What the kernel's names are, as far as the analysis may know: their types, never their values."""

import builtins
import sys
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

from jupyter_mgpu.loop_cell.patterns import FOLDING_METHODS

_CONTAINERS = (list, dict, set, deque, bytearray)
_PLAIN = (list, tuple, dict, str, bytes, bytearray, range, deque)
_ARRAY_PACKAGES = ("numpy", "torch")
_CHANGING_METHODS = FOLDING_METHODS | {
    "clear",
    "difference_update",
    "intersection_update",
    "pop",
    "popitem",
    "popleft",
    "remove",
    "reverse",
    "rotate",
    "sort",
    "symmetric_difference_update",
}
UNCHANGEABLE = frozenset({int, float, complex, bool, str, bytes, tuple, frozenset, type(None)})


class KernelNames:
    """Answers questions about names outside the loop.

    Args:
        namespace: The kernel's names. None: nothing is known of them.
    """

    def __init__(self, namespace: Mapping[str, object] | None) -> None:
        self._namespace = namespace

    def has(self, name: str) -> bool | None:
        """Tell whether the kernel defines a name; None: that is not known."""
        return None if self._namespace is None else name in self._namespace

    def is_builtin(self, name: str) -> bool:
        """Tell whether a name is Python's own."""
        return not self.has(name) and hasattr(builtins, name)

    def is_module(self, name: str) -> bool:
        """Tell whether a name is a module for certain."""
        return isinstance(self._get(name), types.ModuleType)

    def holds_its_elements(self, name: str) -> bool:
        """Tell whether `name[i]` only looks an element up, which computes nothing.

        True where nothing is known. A data set that loads what it is asked for does not.
        """
        if not self.has(name):
            return True
        value = self._get(name)
        if getattr(value, "requires_grad", False):  # its elements would belong to a graph
            return False
        return type(value) in _PLAIN or type(value).__module__ in _ARRAY_PACKAGES

    def is_changed_by(self, name: str, method: str) -> bool:
        """Tell whether a method changes the name's value for certain."""
        is_container = type(self._get(name)) in _CONTAINERS
        return is_container and method in _CHANGING_METHODS

    def are_one(self, name: str, other: str) -> bool:
        """Tell whether a change inside one name's value is seen by the other's, as far as known."""
        mine, theirs = self._get(name), self._get(other)
        if type(mine) in UNCHANGEABLE or isinstance(mine, types.ModuleType):
            return False
        return mine is theirs or _share_memory(mine, theirs)

    def _get(self, name: str) -> object:
        return None if self._namespace is None else self._namespace.get(name)


def _share_memory(mine: Any, theirs: Any) -> bool:
    kinds = {type(mine).__module__.partition(".")[0], type(theirs).__module__.partition(".")[0]}
    if kinds == {"torch"} and hasattr(mine, "data_ptr") and hasattr(theirs, "data_ptr"):
        return bool(mine.numel() and mine.data_ptr() == theirs.data_ptr())
    numpy = sys.modules.get("numpy")
    if (
        numpy is None
        or not isinstance(mine, numpy.ndarray)
        or not isinstance(theirs, numpy.ndarray)
    ):
        return False
    try:
        return bool(numpy.shares_memory(mine, theirs, max_work=10_000))
    except RuntimeError:  # TooHardError: shapes for which it would take long
        return False
