"""Several calls as one, on the engine."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def call_each(fn: Callable[..., Any], items: Iterable[Sequence[Any]]) -> list[Any]:
    """Call a function once per item, and return the results."""
    return [fn(*item) for item in items]
