"""What the items of a loop print, show and report: in its cell, and in its future's diary."""

from collections.abc import Sequence
from datetime import UTC, datetime

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
        engines = pool.owner.engines
        self._cell = CellOutput(
            pool.ranks,
            place,
            log_paths={rank: str(engine.log) for rank, engine in engines.items()},
            labels={rank: pool.device(rank) for rank in pool.ranks},
            send=pool.owner.post,
        )

    def begin(self) -> None:
        """Note that a chunk has started."""
        self._future.begin(datetime.now(UTC))

    def handle(self, rank: int, header: Header, frames: Sequence[Frame]) -> None:
        """Take what a chunk tells beside its results."""
        operation = header["op"]
        if operation in ("output", "report"):
            self._future.handle(header)
        if operation in ("output", "display", "comm"):
            self._cell.handle(rank, header, frames)
        elif operation == "stopping":
            self._cell.status(f"rank {rank}: stopping; a second Stop replaces its engine")

    def finish(self) -> None:
        """Bring the cell to its final state."""
        self._cell.finish()
