"""States as a notebook's file holds them: small.

JSON in a notebook is written with a line per value, so a long list costs several times its numbers.
"""

from collections.abc import Iterable
from typing import Any

PACKED = ("values", "steps", "epoch_steps")
GAP = "-"
"""Stands for a value that is None. `views/packed.js` reads what is written here."""


def packed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state whose lists of numbers are texts."""
    return {**_packed(state), "packed": True}


def _packed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_packed(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _text(one) if name in PACKED and isinstance(one, list | tuple) else _packed(one)
        for name, one in value.items()
    }


def _text(numbers: Iterable[float | None]) -> str:
    return ",".join(GAP if number is None else repr(number) for number in numbers)
