"""Find the part of an object that cannot be pickled, and name the path to it."""

import functools
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jupyter_mgpu.packing.functions import used_globals

_MAX_DEPTH = 30
_SEARCH_S = 2.0
_MAX_REPR = 40


def find_fault(obj: Any, try_to_dump: Callable[[Any], None], labels: Sequence[str] = ()) -> str:
    """Descend to the innermost part that cannot be pickled.

    Args:
        obj: The object that could not be pickled.
        try_to_dump: Pickles an object, or raises.
        labels: Where obj is a tuple, the names of its items.

    Returns:
        Such as `args[1].lock`; empty where the object itself is at fault.
    """
    deadline = time.monotonic() + _SEARCH_S
    seen = {id(obj)}
    path = ""
    parts = _labelled(obj, labels) if labels else _parts(obj)
    for _ in range(_MAX_DEPTH):
        found = _first_fault(parts, try_to_dump, seen, deadline)
        if found is None:
            break
        step, part = found
        path = f"{path}{step}" if path else step.removeprefix(".")
        parts = _parts(part)
    return path


def _first_fault(
    parts: Iterator[tuple[str, Any]],
    try_to_dump: Callable[[Any], None],
    seen: set[int],
    deadline: float,
) -> tuple[str, Any] | None:
    try:
        for step, part in parts:
            if time.monotonic() > deadline:
                return None
            if id(part) in seen:
                continue
            seen.add(id(part))
            try:
                try_to_dump(part)
            except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
                return step, part
    except Exception:  # noqa: BLE001 - a user's __getstate__ may raise: it is the fault itself
        return None
    return None


def _labelled(obj: Any, labels: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if not isinstance(obj, tuple) or len(obj) != len(labels):
        yield from _parts(obj)
        return
    for label, part in zip(labels, obj, strict=True):
        yield f".{label}", part


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, types.FunctionType):
        yield from _function_parts(obj)
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
        yield ".__func__", obj.__func__
    elif isinstance(obj, functools.partial):
        yield ".func", obj.func
        yield ".args", obj.args
        yield ".keywords", obj.keywords
    elif isinstance(obj, type):
        for name, part in list(vars(obj).items()):
            if name not in ("__dict__", "__weakref__"):
                yield f".{name}", part
    else:
        yield from _container_parts(obj)
        yield from _state_parts(obj)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield f", closure variable {name}", cell.cell_contents
        except ValueError:  # an empty cell
            continue
    for default in function.__defaults__ or ():
        yield ", default value", default
    for name, default in (function.__kwdefaults__ or {}).items():
        yield f", default of {name}", default
    for name, part in used_globals(function).items():
        yield f", global {name}", part
    for name, part in vars(function).items():
        yield f".{name}", part


def _container_parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        for key, part in list(obj.items()):
            yield f"[{_short(key)}]", part
        for key in list(obj):
            yield ", a key", key
    elif isinstance(obj, list | tuple):
        for index, part in enumerate(obj):
            yield f"[{index}]", part
    elif isinstance(obj, set | frozenset):
        for part in obj:
            yield ", an element", part


def _state_parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if type(obj) in (dict, list, tuple, set, frozenset, str, bytes, int, float):
        return
    own = getattr(obj, "__dict__", None)
    if isinstance(own, dict):
        for name, part in list(own.items()):
            yield f".{name}", part
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(obj, name):
                yield f".{name}", getattr(obj, name)
    if isinstance(obj, BaseException):
        yield ".args", obj.args
    yield from _reduced_parts(obj)
    yield f" (class {type(obj).__name__})", type(obj)


def _reduced_parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yield what the object's own __reduce_ex__ hands to pickle."""
    reduced = obj.__reduce_ex__(5)
    if not isinstance(reduced, tuple):
        return
    for part in reduced[1]:
        yield f" (holds {type(part).__name__})", part
    state = reduced[2] if len(reduced) > 2 else None
    for items in state if isinstance(state, tuple) else (state,):
        if isinstance(items, dict):
            for name, part in items.items():
                yield f".{name}", part


def _short(key: Any) -> str:
    if not isinstance(key, str | bytes | int | float | bool | type(None)):
        return f"<{type(key).__name__}>"
    text = repr(key)
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."
