"""Pack an exception so that it certainly can be rebuilt, leaving out what cannot travel."""

from typing import Any

from jupyter_mgpu.packing import classes
from jupyter_mgpu.packing.exceptions import rebuild_exception
from jupyter_mgpu.packing.frames import Frame, pack, unpack


class ReprText(str):
    """Stands for an object that cannot travel: reads like it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Replica:
    """Pickles as an exception of which only the parts that can travel are left."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = tuple(_or_repr(value) for value in self._error.args)
        # A part that is left out reads None, so that code that looks at it does not stumble.
        state = {name: _or_none(value) for name, value in vars(self._error).items()}
        return rebuild_exception, (type(self._error), arguments), state


def pack_exception(error: BaseException) -> list[Frame] | None:
    """Pack an exception with its args, attributes and notes, without its traceback.

    What cannot travel is replaced: an argument by its repr, an attribute by None.

    Returns:
        Frames, which are known to unpack; None where the type cannot travel.
    """
    for candidate in (error, _Replica(error)):
        frames = _packed_and_tried(candidate, error)
        if frames is not None:
            return frames
    return None


def _packed_and_tried(candidate: Any, error: BaseException) -> list[Frame] | None:
    try:
        frames = pack(candidate, copy=True)
        with classes.trial():
            rebuilt = unpack(frames)
        is_same = type(rebuilt) is type(error) and str(rebuilt) == str(error)
    except BaseException:  # noqa: BLE001 - any failure means that this form cannot travel
        return None
    return frames if is_same else None


def _or_repr(value: Any) -> Any:
    if _can_travel(value):
        return value
    try:
        return ReprText(repr(value))
    except BaseException:  # noqa: BLE001 - a broken __repr__ must not hide the error
        return ReprText(f"<{type(value).__name__}>")


def _or_none(value: Any) -> Any:
    return value if _can_travel(value) else None


def _can_travel(value: Any) -> bool:
    try:
        with classes.trial():
            unpack(pack(value, copy=True))
    except BaseException:  # noqa: BLE001 - as above
        return False
    return True
