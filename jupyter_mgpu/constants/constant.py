"""`Constant`: sent or built once on each engine that uses it."""

import functools
import types
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from jupyter_mgpu import exchange, packing
from jupyter_mgpu.composite import Composite
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.exchange import published
from jupyter_mgpu.on_engine import constants, context
from jupyter_mgpu.on_engine.constants import Recipe, Slot
from jupyter_mgpu.packing import companions

_MISSING = object()
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
)


class Constant:
    """A value that goes to each engine once, at its first `.value` there.

    It may be an argument, a global or an item of whatever runs on an engine, of any pool of this
    notebook: what travels is its key. A value is packed when the constant is made, so later changes
    of it are not seen; a factory is called on each engine, and again on one that is replaced or
    added. It is freed on the engines when it is closed, or when neither the notebook nor a task
    refers to it any more; an engine does that between two tasks.

    Args:
        value: The value; or a function, method or partial, which is called without arguments to
            make it. Other callables, such as networks and classes, are values. `pool["x"]` stands
            for each rank's own x, as it is when it is used; nothing moves.
        factory: Any callable that makes the value.
        cleanup: Called with the value where it is freed, and on idle engines before their pool is
            shut down; not with a value in the kernel, which is yours.

    Raises:
        PackingError: If it cannot be pickled; it says which part.

    Example:
        >>> table = Constant(load_table)
        >>> parfor(lambda i: table.value[i], range(100))
    """

    def __init__(
        self,
        value: Any = _MISSING,
        /,
        *,
        factory: Callable[[], Any] | None = None,
        cleanup: Callable[[Any], Any] | None = None,
    ) -> None:
        self._recipe: Recipe | None = _recipe_of(value, factory, cleanup)
        self._key = uuid.uuid4().hex
        self._slot: Slot | None = _own_slot(self, self._recipe)
        self._ticket: Any = None
        self._composite = value if isinstance(value, Composite) else None
        if context.current() is None:
            frames = packing.pack(
                self._recipe, copy=True, labels=Recipe._fields, place=exchange.place()
            )
            self._ticket = published.publish(
                self._key,
                frames,
                maker=self,
                home=self._composite.line if self._composite is not None else None,
                has_cleanup=cleanup is not None,
            )

    @property
    def value(self) -> Any:
        """The value here: fetched or made now, if this is its first use in this process.

        Raises:
            MgpuError: If it has been freed.
            BaseException: What its factory raises; it is called again the next time.
        """
        if self._composite is not None:
            raise MgpuError(
                'This Constant has one value per rank. Here, use the composite, as pool["x"][0].'
            )
        return constants.value_of(self._key) if self._slot is None else self._slot.value()

    def close(self) -> None:
        """Free it here and on all engines, there when the tasks that run now have ended.

        Tasks that still wait for an engine cannot use it any more. Harmless when it was closed.
        """
        if self._slot is None:
            raise MgpuError("A Constant of the notebook is closed there, not on an engine.")
        self._recipe = self._composite = None
        published.free(self._key)
        self._slot.free()

    def __reduce__(self) -> Any:
        if context.current() is None:
            companions.accompany(self._ticket)
            published.move_to_shared_memory(self._key)
        elif self._recipe is not None:  # made on an engine: it goes as what it is
            return _remake, tuple(self._recipe)
        return rebuild, (self._key,)

    def __repr__(self) -> str:
        recipe = self._recipe
        if recipe is None:
            return "<Constant>"
        what = {"name": "values of a composite", "factory": "made by a factory"}
        return f"<Constant: {what.get(recipe.kind, type(recipe.value).__name__)}>"


def _recipe_of(value: Any, factory: Any, cleanup: Any) -> Recipe:
    if (value is _MISSING) == (factory is None):
        raise TypeError("Give a Constant either a value or a factory.")
    for name, function in (("factory", factory), ("cleanup", cleanup)):
        if function is not None and not callable(function):
            raise TypeError(f"{name} is a {type(function).__name__}, but must be a function.")
    if isinstance(value, Composite):
        if cleanup is not None:
            raise TypeError("The values of a Composite belong to its pool: leave cleanup out.")
        return Recipe("name", value.name, None)
    if factory is None and isinstance(value, _FUNCTIONS):
        factory = value
    if factory is not None:
        return Recipe("factory", factory, cleanup)
    return Recipe("value", value, cleanup)


def _own_slot(constant: Constant, recipe: Recipe) -> Slot:
    """Make the slot of the process that makes the constant; a value there is the user's."""
    own = recipe if recipe.kind == "factory" else recipe._replace(cleanup=None)
    slot = Slot(lambda: own)
    weakref.finalize(constant, slot.free)
    return slot


def _remake(kind: str, value: Any, cleanup: Any) -> Constant:
    source = {"factory": value} if kind == "factory" else {}
    return Constant(*(() if source else (value,)), **source, cleanup=cleanup)


def rebuild(key: str) -> Constant:
    """Return the constant of the kernel that has a key, or a handle of it."""
    publication = None if context.current() is not None else published.find(key)
    maker: Constant | None = publication.maker() if publication is not None else None
    return maker or _Handle(key, publication)


class _Handle(Constant):
    """A constant of the kernel where its maker is not: on an engine, or back after its end."""

    def __init__(self, key: str, publication: published.Publication | None) -> None:
        self._key, self._recipe, self._composite = key, None, None
        self._ticket = publication.ticket() if publication is not None else None
        self._slot = None
        if context.current() is None:
            self._slot = _handle_slot(publication)
            weakref.finalize(self, self._slot.free)


def _handle_slot(publication: published.Publication | None) -> Slot:
    """Make the slot of a constant that came back to the kernel, where its maker is gone."""
    if publication is None:
        return Slot(constants.raise_freed)
    frames = publication.frames
    return Slot(lambda: packing.unpack(frames))
