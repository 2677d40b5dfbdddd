"""What the items of a loop print, show and report: in its cell, and in its future's diary."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from jupyter_mgpu.gangs import output_of, stopping_line
from jupyter_mgpu.loops.future import LoopFuture
from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.wire import Frame, Header


class ChunkOutput:
    """Takes the output of a loop's chunks.

    Args:
        pool: The pool.
        future: The loop's.
        place: The cell that the loop runs in.
    """

    def __init__(self, pool: Pool, future: LoopFuture, place: Publisher) -> None:
        self._future = future
        self._cell = output_of(pool, pool.ranks, place)
        # Shows what threads print that a chunk has left behind; it keeps no results alive.
        self.show_late = partial(_show, self._cell)

    def begin(self) -> None:
        """Note that a chunk has started."""
        self._future.begin(datetime.now(UTC))

    def handle(self, header: Header, frames: Sequence[Frame]) -> None:
        """Take what a chunk tells beside its results."""
        if header["op"] in ("output", "report"):
            self._future.handle(header)
        self.show_late(header, frames)

    def finish(self) -> None:
        """Bring the cell to its final state."""
        self._cell.finish()


def _show(cell: CellOutput, header: Header, frames: Sequence[Frame]) -> None:
    if header["op"] in ("output", "display", "comm"):
        cell.handle(header["rank"], header, frames)
    elif header["op"] == "stopping":
        cell.status(stopping_line(header))
