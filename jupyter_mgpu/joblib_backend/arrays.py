"""Large arrays of joblib's calls that would be copied for each of them."""

from typing import Any

from jupyter_mgpu.packing.handles import is_array

LEAST_BYTES = 2**20
"""As joblib's `max_nbytes`: smaller ones travel with each call."""


class OnceCopied:
    """Replaces arrays with gaps, such as `x[:, ::2]`, by copies without, one per array.

    What has no gaps goes to the engines once by itself; a copy that is new for each call would not.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any]] = {}  # with the array, so that its id stays

    def items(self, items: list[tuple[Any, Any, Any]]) -> list[tuple[Any, Any, Any]]:
        """Return calls of joblib with their arguments replaced."""
        return [
            (
                fn,
                tuple(map(self._replaced, args)),
                {name: self._replaced(value) for name, value in kwargs.items()},
            )
            for fn, args, kwargs in items
        ]

    def _replaced(self, value: Any) -> Any:
        if not is_array(value) or value.nbytes < LEAST_BYTES or value.flags.forc:
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = (value, value.copy())
        return self._copies[id(value)][1]
