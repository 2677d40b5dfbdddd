"""Numbers for tensors and arrays, so that the same object can be meant again without its data."""

import sys
import weakref
from typing import Any

from jupyter_mgpu.packing.loaded import loaded


class HandleTable:
    """Numbers objects without keeping them alive.

    Args:
        first: The first number given out; the others follow in steps of the same sign, so that
            the numbers of one side of a connection never meet those of the other.
    """

    def __init__(self, first: int = 1) -> None:
        self._next = first
        self._step = 1 if first > 0 else -1
        self._by_id: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._by_number: dict[int, weakref.ref[Any]] = {}

    def number(self, obj: Any) -> int:
        """Return the number of an object, a new one at its first sight."""
        entry = self._by_id.get(id(obj))
        # An id is used again once its object is gone; the weak reference tells.
        if entry is not None and entry[0]() is obj:
            return entry[1]
        number = self._next
        self._next += self._step
        self.register(number, obj)
        return number

    def register(self, number: int, obj: Any) -> None:
        """Give an object a number that the other side chose."""
        address = id(obj)

        def forget(reference: weakref.ref[Any]) -> None:
            if self._by_number.get(number) is reference:
                del self._by_number[number]
            entry = self._by_id.get(address)
            if entry is not None and entry[0] is reference:
                del self._by_id[address]

        reference = weakref.ref(obj, forget)
        self._by_id[address] = (reference, number)
        self._by_number[number] = reference

    def get(self, number: int) -> Any:
        """Return the object of a number, or None where it is gone."""
        reference = self._by_number.get(number)
        return None if reference is None else reference()


def is_leaf(obj: Any) -> bool:
    """Tell whether an object is a tensor, or an array of plain numbers."""
    return is_tensor(obj) or is_array(obj)


def is_tensor(obj: Any) -> bool:
    """Tell whether an object is a tensor of any class."""
    torch = loaded("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def is_array(obj: Any) -> bool:
    """Tell whether an object is a NumPy array without Python objects in it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(obj) is numpy.ndarray and not obj.dtype.hasobject
