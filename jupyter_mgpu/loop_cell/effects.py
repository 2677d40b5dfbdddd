"""What the function of one iteration calls on an engine, beside the user's code."""

from collections import deque
from typing import Any

_UNCHANGEABLE = frozenset({int, float, str, bool, type(None), bytes, complex})
_COPIED = (list, dict, set, deque, bytearray)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class Missing:
    """Stands for an element that could not be looked up, until it is read.

    Args:
        error: Why not.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


def read(element: Any) -> Any:
    """Return an element that travelled with the item.

    Raises:
        Exception: What looking it up has raised, as it would here.
    """
    if isinstance(element, Missing):
        raise element.error
    return element


def settle(value: Any) -> Any:
    """Return a value as it can travel: what an iterator yields, or a view shows, as a list."""
    if type(value) in _UNCHANGEABLE:  # most are
        return value
    if hasattr(value, "__next__") or isinstance(value, _VIEWS):
        return list(value)
    return value


def snapshot(value: Any) -> Any:
    """Return a value as it is now, whatever the iteration does to it later."""
    if type(value) in _UNCHANGEABLE:
        return value
    if isinstance(value, _COPIED):
        return value.copy()
    if is_array(value):
        return value.clone() if hasattr(value, "clone") else value.copy()
    return settle(value)


def is_array(value: Any) -> bool:
    """Tell whether a value is an array or tensor, of which a store copies what is stored."""
    return hasattr(type(value), "__array__")


def stored(element: Any, value: Any) -> Any:
    """Return what `a[i]` is after `a[i] = value`, by what it was before.

    An array's element keeps its type, and names of its row see the new values.

    Args:
        element: The element before; if it is a row, a copy of the iteration's own.
        value: What is stored.
    """
    if not is_array(element):
        return value
    if not hasattr(element, "__setitem__"):  # a scalar of numpy's
        cell = element.__array__().copy()
        cell[...] = value
        return cell[()]
    element[...] = value
    return element
