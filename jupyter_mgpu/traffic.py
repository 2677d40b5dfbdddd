"""Counts the bytes that move between the kernel and the engines, as MATLAB's ticBytes does."""

from collections.abc import Mapping
from typing import Any, Self

from jupyter_mgpu.engines import MovedBytes
from jupyter_mgpu.output.table import format_bytes, text_table
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.start import pool_named


class Traffic(Mapping[int, MovedBytes]):
    """What moved, by rank, since the counting began; it stands still when the counting ends.

    Args:
        pool: Whose bytes are counted.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._before: dict[int, MovedBytes] = {}
        self._after: dict[int, MovedBytes] | None = None

    def __enter__(self) -> Self:
        self._before, self._after = self._now(), None
        return self

    def __exit__(self, *exception: object) -> None:
        self._after = self._now()

    def _now(self) -> dict[int, MovedBytes]:
        return {int(engine.rank): engine.moved for engine in self._pool.status().engines}

    def _moved(self) -> dict[int, MovedBytes]:
        after = self._now() if self._after is None else self._after
        nothing = MovedBytes()
        return {rank: moved - self._before.get(rank, nothing) for rank, moved in after.items()}

    def __getitem__(self, rank: int) -> MovedBytes:
        return self._moved()[rank]

    def __iter__(self) -> Any:
        return iter(self._moved())

    def __len__(self) -> int:
        return len(self._moved())

    def __repr__(self) -> str:
        moved = self._moved()
        total = MovedBytes(
            sum(part.sent for part in moved.values()),
            sum(part.received for part in moved.values()),
            sum(part.shared for part in moved.values()),
        )
        rows = [_row(str(rank), part) for rank, part in moved.items()]
        return text_table([*rows, _row("all", total)])


def _row(rank: str, moved: MovedBytes) -> dict[str, Any]:
    return {
        "rank": rank,
        "sent": format_bytes(moved.sent),
        "received": format_bytes(moved.received),
        "of it in shared memory": format_bytes(moved.shared),
    }


def count_bytes(pool: Pool | None = None) -> Traffic:
    """Count the bytes that go to each rank and come back, in a with-block.

    What was submitted and not yet handed to an engine when the block ends is not counted: wait for
    the results in the block. Data that several ranks read in shared memory counts for each, though
    it exists once; on its way to another host it counts once more, for the rank that it went by.

    Args:
        pool: Whose bytes; the current pool by default.

    Returns:
        By rank, `sent`, `received` and `shared` bytes; shown as a table.

    Example:
        >>> with count_bytes() as moved:
        ...     parfeval(train, data).result()
        >>> moved
    """
    return Traffic(pool or pool_named(None))
