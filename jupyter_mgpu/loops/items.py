"""The items of a loop: read when they are needed, and each packed for itself."""

import operator
import time
from collections.abc import Iterable, Sequence
from typing import Any

from jupyter_mgpu.errors import PackingError
from jupyter_mgpu.packing import Place, parcels

MAX_BYTES = 8 * 2**20
"""A chunk takes no more items when it has so many bytes."""
MAX_READ_S = 0.05
"""Nor when reading them takes so long: the engines must not wait for a slow iterable."""

Item = tuple[int, Any]
"""An item's index and its parcel; an exception where it cannot be packed."""


class Items:
    """Reads the iterables together, as `zip` does.

    Args:
        iterables: What is looped over.
        place: Puts large parts of items elsewhere, as `Store.place` does.

    Attributes:
        total: How many items there will be; None where that is not known.
        num_read: How many were read.
        is_exhausted: Whether there are no more.
    """

    def __init__(self, iterables: Sequence[Iterable[Any]], place: Place | None = None) -> None:
        lengths = [length for iterable in iterables if (length := _length(iterable)) is not None]
        self.total: int | None = min(lengths) if lengths else None
        self.num_read = 0
        self.is_exhausted = False
        self._tuples = zip(*iterables, strict=False)
        self._place = place
        self._labels = [f"argument {number}" for number in range(1, len(iterables) + 1)]

    def take(self, number: int) -> list[Item]:
        """Read and pack items: at most so many, fewer if they are large or slow to come.

        Raises:
            Exception: What an iterable raises.
        """
        taken: list[Item] = []
        num_bytes = 0
        deadline_s = time.monotonic() + MAX_READ_S
        while len(taken) < number and num_bytes < MAX_BYTES and not self.is_exhausted:
            try:
                arguments = next(self._tuples)
            except StopIteration:
                self.is_exhausted = True
                self.total = self.num_read
                break
            parcel = self._pack(self.num_read, arguments)
            taken.append((self.num_read, parcel))
            num_bytes += parcels.size_of(parcel) if not isinstance(parcel, Exception) else 0
            self.num_read += 1
            if time.monotonic() > deadline_s:
                break
        return taken

    def _pack(self, index: int, arguments: tuple[Any, ...]) -> Any:
        labels = self._labels if len(self._labels) > 1 else ("item",)
        try:
            return parcels.wrap(arguments, labels=labels, place=self._place)
        except PackingError as error:
            return PackingError(f"Item {index} of the loop cannot be sent: {error}")


def _length(iterable: Any) -> int | None:
    try:
        length = operator.length_hint(iterable, -1)
    except Exception:  # noqa: BLE001 - a user's __len__ may raise anything: then it is not known
        return None
    return None if length < 0 else length
