"""What the kernel's names are, as far as the analysis may know: their types, never their values."""

import builtins
import types
from collections import deque
from collections.abc import Mapping

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

    def _get(self, name: str) -> object:
        return None if self._namespace is None else self._namespace.get(name)
