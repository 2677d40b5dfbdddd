"""What the chunks of a loop tell: output goes to the cell, the rest to the loop's thread."""

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from jupyter_mgpu.client import Listener
from jupyter_mgpu.loops.future import LoopFuture
from jupyter_mgpu.loops.items import Item
from jupyter_mgpu.on_engine import bookmark
from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.wire import Frame, Header


@dataclass(slots=True, eq=False)
class Chunk:
    """Items that are sent together.

    Attributes:
        id: Its task's.
        number: The same as a number, unique in the pool.
        items: What it was made of.
        frames: These, packed.
        num_done: How many of them have ended, from the first one on.
        rank: Where it runs; -1 while it waits.
        place: The position of the item that ran when its engine died.
    """

    id: str
    number: int
    items: list[Item]
    frames: list[Frame]
    num_done: int = 0
    rank: int = -1
    place: int | None = None

    def rest(self) -> list[Item]:
        """Return the items that have not ended."""
        return self.items[self.num_done :]


class Listening:
    """Takes the events of a loop's chunks in the pool's delivery thread.

    Args:
        pool: The pool.
        future: The loop's.
        function: The loop's function, packed.
        place: The cell that the loop runs in.
    """

    def __init__(
        self, pool: Pool, future: LoopFuture, function: list[Frame], place: Publisher
    ) -> None:
        self._pool = pool
        self._future = future
        self._function = [len(function).to_bytes(4, "little"), *function]
        self._events: deque[tuple[Header, list[Frame]]] = deque()
        self.wake = threading.Event()
        engines = pool.owner.engines
        self._output = CellOutput(
            pool.ranks,
            place,
            log_paths={rank: str(engine.log) for rank, engine in engines.items()},
            labels={rank: pool.device(rank) for rank in pool.ranks},
            send=pool.owner.post,
        )

    def listener(self, chunk: Chunk) -> Listener:
        """Return what takes the events of a chunk."""

        def listen(header: Header, frames: list[Frame]) -> bool:
            self._take(chunk, header, frames)
            return bool(header["op"] == "ended")

        return listen

    def _take(self, chunk: Chunk, header: Header, frames: list[Frame]) -> None:
        operation = header["op"]
        if operation in ("part", "done", "ended"):
            if header.get("status") == "died":  # now, before a new engine opens the bookmark
                chunk.place = self._read_place(chunk)
            self._events.append((header, frames))
            self.wake.set()
        elif operation == "started":
            chunk.rank = header["rank"]
            self._future.begin(datetime.now(UTC))
        elif operation == "missing":
            frames = [*self._function, *chunk.frames]
            self._pool.owner.resend(chunk.id, header["rank"], frames)
        elif operation in ("output", "display", "comm"):
            self._output.handle(header["rank"], header, frames)
            self._future.handle(header)
        elif operation == "report":
            self._future.handle(header)
        elif operation == "stopping":
            self._output.status(f"rank {chunk.rank}: stopping; a second Stop replaces its engine")

    def _read_place(self, chunk: Chunk) -> int | None:
        log = self._pool.owner.engines[chunk.rank].log
        return bookmark.read(bookmark.path_beside(log), chunk.number)

    def events(self, timeout_s: float) -> Iterator[tuple[Header, list[Frame]]]:
        """Wait for events and yield them; one stays until the next one is asked for.

        So an event whose handling was broken off by a Stop comes once more.
        """
        self.wake.wait(timeout_s)
        self.wake.clear()
        while self._events:
            yield self._events[0]
            self._events.popleft()

    def finish(self) -> None:
        """Bring the output to its final state."""
        self._output.finish()
