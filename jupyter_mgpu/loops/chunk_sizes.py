"""How many items go into the next chunk. Pure arithmetic: no clock, no I/O."""

import math

CHUNK_S = 0.1
"""A chunk is to take so long: short enough for progress and Stop, long beside its sending."""
CUT_S = 0.25
"""After so long a chunk gives back what it has not begun."""
GROWTH = 8
"""A chunk has at most so many times as many items as the largest one that has run."""
SHARE = 2
"""A chunk has at most this part of what one engine has left: the end is divided finely."""


class ChunkSizes:
    """Chooses sizes by what the chunks so far have taken.

    Args:
        fixed: The size that the user asked for.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._item_s: float | None = None
        self._largest = 0

    def next(self, num_left: int | None, num_engines: int) -> int:
        """Return the size of the next chunk.

        Args:
            num_left: How many items no engine has yet; None where that is not known.
            num_engines: How many engines share the work.
        """
        if self._fixed is not None:
            return self._fixed
        if self._item_s is None:
            return 1
        size = min(CHUNK_S / max(self._item_s, 1e-7), self._largest * GROWTH)
        if num_left is not None:
            size = min(size, math.ceil(num_left / (num_engines * SHARE)))
        return max(1, int(size))

    def ran(self, num_items: int, seconds: float) -> None:
        """Take note of what a chunk has taken."""
        if num_items:
            item_s = seconds / num_items
            # Half of it by the newest chunk: a first item may have imported a library.
            self._item_s = item_s if self._item_s is None else (self._item_s + item_s) / 2
            self._largest = max(self._largest, num_items)

    @property
    def budget_s(self) -> float | None:
        """After how long a chunk gives back the rest."""
        return CUT_S if self._fixed is None else None
