"""What a loop is asked for, checked before anything runs."""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jupyter_mgpu.loop_cell import check_iterable

OnError = Literal["raise", "collect"]


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How a loop is run; see `parfor`."""

    seed: int | None = None
    chunk: int | None = None
    workers: int | None = None
    on_error: OnError = "raise"
    name: str | None = None

    def __post_init__(self) -> None:
        _check_number("seed", self.seed, least=0)
        _check_number("chunk", self.chunk, least=1)
        _check_number("workers", self.workers, least=0)
        if self.on_error not in ("raise", "collect"):
            raise ValueError(
                f'on_error={self.on_error!r} was given; it must be "raise" or "collect".'
            )

    @property
    def collects(self) -> bool:
        """Whether exceptions stand among the results."""
        return self.on_error == "collect"


def _check_number(name: str, value: Any, *, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r} was given; it must be a whole number, or None.")
    if operator.index(value) < least:
        raise ValueError(f"{name}={value!r} was given; it must be {least} or more, or None.")


def check_call(fn: Callable[..., Any], iterables: Sequence[Iterable[Any]]) -> None:
    """Check what a loop calls, and over what.

    Raises:
        TypeError: If the function cannot be called, or an iterable is none.
    """
    if not callable(fn):
        raise TypeError(f"{fn!r} was given as the loop's function, but it cannot be called.")
    if not iterables:
        raise TypeError("No iterable was given. Give what to loop over: parfor(fn, range(10)).")
    for iterable in iterables:
        check_iterable(iterable)
