"""What the items of a loop have given so far."""

from collections.abc import Callable
from typing import Any

OnResult = Callable[[int, Any], None]
"""Takes an item's index and result, in loop order."""


class Results:
    """Finished items, in any order. One thread adds them; others may look.

    Args:
        on_result: Takes the results in loop order, each as soon as those before it are there; they
            are not kept then.

    Attributes:
        values: By index, results and collected exceptions.
        num_done: How many items have ended.
        num_failed: How many of them failed.
    """

    def __init__(self, on_result: OnResult | None = None) -> None:
        self._on_result = on_result
        self.values: dict[int, Any] = {}
        self.num_done = 0
        self.num_failed = 0
        self._next = 0  # handed over next

    def add(self, index: int, value: Any, *, failed: bool = False) -> None:
        """Take an item's result, or the exception that stands in its place."""
        self.values[index] = value
        self.num_done += 1
        self.num_failed += failed

    def hand_over(self) -> None:
        """Give the callback, in the calling thread, what is next and there."""
        while self._on_result is not None and self._next in self.values:
            value = self.values.pop(self._next)
            self._next += 1
            self._on_result(self._next - 1, value)

    def finished(self) -> dict[int, Any]:
        """Return what is there, by index, in loop order."""
        return dict(sorted(self.values.copy().items()))

    def in_order(self) -> list[Any]:
        """Return everything as a list; all items must have ended."""
        return [self.values[index] for index in range(len(self.values))]


def keep_results(error: BaseException, results: Results) -> None:
    """Give an exception the results that were there: `error.results`, by index."""
    error.__dict__["results"] = results.finished()
