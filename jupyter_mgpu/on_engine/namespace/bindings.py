"""See which names were bound anew since one last looked, without keeping their objects alive."""

import types
import weakref
from typing import Any

from jupyter_mgpu.on_engine.namespace.names import CellNames, is_user_name

# Equal ones are often one object, and a strong reference to one keeps nothing large alive.
ATOMS = (int, float, complex, bool, type(None), types.EllipsisType)
_SHARED = (*ATOMS, str, bytes, tuple, frozenset)


class Bindings:
    """Remembers what each name was bound to.

    Args:
        user_ns: The namespace to watch.
    """

    def __init__(self, user_ns: dict[str, Any]) -> None:
        self._user_ns = user_ns
        self._marks: dict[str, Any] = {}
        self.look()

    def look(self) -> None:
        """Take what there is now as seen."""
        self._marks = {
            name: _mark(value) for name, value in list(self._user_ns.items()) if is_user_name(name)
        }

    def see(self, name: str) -> None:
        """Take what one name is bound to now as seen."""
        if name in self._user_ns:
            self._marks[name] = _mark(self._user_ns[name])
        else:
            self._marks.pop(name, None)

    def changes(self, names: CellNames, *, failed: bool) -> tuple[set[str], set[str]]:
        """Find the names that were bound anew and those that were deleted since the last look.

        Args:
            names: What the cell that ran in between binds, by its text: a name may be bound
                again to the same object.
            failed: The cell ended early, so that its text says little.
        """
        current = {name: value for name, value in list(self._user_ns.items()) if is_user_name(name)}
        deleted = self._marks.keys() - current.keys()
        rebound = {
            name
            for name, value in current.items()
            if name not in self._marks or not _is_marked(self._marks[name], value)
        }
        if not failed:
            rebound |= names.bound & current.keys()
            rebound |= {
                name
                for name in names.maybe_bound & current.keys()
                if isinstance(current[name], _SHARED)
            }
        self.look()
        return rebound, set(deleted)


class _Fleeting:
    """Marks an object without a weak reference by id and type: an id alone is soon used again."""

    __slots__ = ("_address", "_kind")

    def __init__(self, value: Any) -> None:
        self._address = id(value)
        self._kind = type(value)

    def __call__(self, value: Any) -> bool:
        return id(value) == self._address and type(value) is self._kind


def _mark(value: Any) -> Any:
    if type(value) in ATOMS:
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return _Fleeting(value)


def _is_marked(mark: Any, value: Any) -> bool:
    if type(mark) is weakref.ref:
        return mark() is value
    if type(mark) is _Fleeting:
        return mark(value)
    return mark is value
