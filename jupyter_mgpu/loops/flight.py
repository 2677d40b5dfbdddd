"""The chunks of a loop that are under way, from its items to its results.

Chunks wait in the pool's queue, about one for each engine that runs one, so that work goes to who
is free and little is read ahead. The thread that runs the loop reads the iterables and makes the
chunks; what comes back is handled in the pool's delivery thread, also while an iterable waits.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from jupyter_mgpu.errors import EngineDiedError, MgpuError, PackingError, PoolClosedError
from jupyter_mgpu.gangs import STOP_S
from jupyter_mgpu.loops.chunk import Chunk, listen_until_end
from jupyter_mgpu.loops.chunk_output import ChunkOutput
from jupyter_mgpu.loops.chunk_sizes import ChunkSizes
from jupyter_mgpu.loops.items import Item, Items
from jupyter_mgpu.loops.options import LoopOptions
from jupyter_mgpu.loops.results import Results
from jupyter_mgpu.on_engine import bookmark
from jupyter_mgpu.on_engine.chunks import note_of
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.output import failures
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.packing import parcels
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.wire import Frame, Header

CHUNKS_PER_ENGINE = 2
"""One runs, one waits."""


class Flight:
    """The chunks of one loop.

    Args:
        pool: Where it runs.
        name: What its tasks are called.
        function: The function, packed.
        key: What the engines call it.
        options: How it runs.
        items: What it loops over.
        results: Takes what the items give.
        output: Takes what its items print and show.

    Attributes:
        error: Why the loop ends before its end.
        changed: Set after each event.
    """

    def __init__(
        self,
        pool: Pool,
        name: str,
        function: list[Frame],
        key: str,
        options: LoopOptions,
        items: Items,
        results: Results,
        output: ChunkOutput,
    ) -> None:
        self._pool = pool
        self._name = name
        self._function = [_count(function), *function]
        self._key = key
        self._options = options
        self._items = items
        self._results = results
        self._output = output
        self._since_s = time.monotonic()
        self._ranks = () if options.workers is None else pool.idle_first(options.workers)
        self._sizes = ChunkSizes(options.chunk)
        self._returned: deque[Item] = deque()
        self._retried: set[int] = set()
        self._chunks: dict[str, Chunk] = {}  # submitted and not over
        self._is_stopping = False
        self._stop_after: StopAfter | None = None
        self.error: BaseException | None = None
        self.changed = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether all items that were read have ended, or an error ends the loop."""
        # In this order: what a chunk gives back is there before the chunk is gone.
        return self.error is not None or not (self._chunks or self._has_rest)

    @property
    def _has_rest(self) -> bool:
        is_left = bool(self._returned) or not self._items.is_exhausted
        return is_left and self._stop_after is None

    @property
    def _num_engines(self) -> int:
        return len(self._ranks) or self._pool.size  # which may grow meanwhile

    @property
    def is_cut_short(self) -> bool:
        """Whether items are left because the loop was asked to stop."""
        is_complete = self._items.is_exhausted and self._results.num_done == self._items.num_read
        return self._stop_after is not None and not is_complete

    # --- what goes out -----------------------------------------------------------------

    def feed(self) -> bool:
        """Submit a chunk if an engine has none that waits; False if there was nothing to do."""
        most = CHUNKS_PER_ENGINE * self._num_engines
        if self._is_stopping or self._stop_after is not None or len(self._chunks) >= most:
            return False
        items = self._next_items()
        if items:
            self._submit(items)
        return bool(items)

    def _next_items(self) -> list[Item]:
        size = self._sizes.next(self._num_left(), self._num_engines)
        if self._returned:
            return [self._returned.popleft() for _ in range(min(size, len(self._returned)))]
        items: list[Item] = []
        while not items and not self._items.is_exhausted and self.error is None:
            for index, parcel in self._items.take(size):
                if isinstance(parcel, Exception):
                    self._fail(index, parcel)
                else:
                    items.append((index, parcel))
        return items

    def _num_left(self) -> int | None:
        total = self._items.total
        return None if total is None else total - self._items.num_read + len(self._returned)

    def _submit(self, items: list[Item]) -> None:
        facts = {
            "indices": [index for index, _ in items],
            "seed": self._options.seed,
            "collects": self._options.collects,
            "budget_s": self._sizes.budget_s,
        }
        frames = parcels.join(facts, [parcel for _, parcel in items])
        number = self._pool.submission.next_number()
        chunk = Chunk(f"c{number}", number, items, frames)
        task = Task(
            id=chunk.id,
            name=self._name,
            header={"kind": "chunk", "loop": self._key, "chunk": number},
            frames=[_count(()), *frames],  # without the function
            ranks=self._ranks,
            since_s=self._since_s,
        )
        self._chunks[chunk.id] = chunk
        listener = listen_until_end(partial(self._take_event, chunk), self._output.show_late)
        self._pool.submission.chunk(task, listener)
        if self._is_stopping:  # meanwhile
            self._interrupt(force=False)
        elif self._stop_after is not None:
            self.request_stop(self._stop_after)

    # --- what comes back ---------------------------------------------------------------

    def _take_event(self, chunk: Chunk, header: Header, frames: list[Frame]) -> None:
        try:
            self._handle(chunk, header, frames)
        except BaseException as error:  # noqa: BLE001 - the loop must end, whatever it is
            self.end_with(error)
            self._chunks.pop(chunk.id, None)
        self.changed.set()

    def _handle(self, chunk: Chunk, header: Header, frames: list[Frame]) -> None:
        operation = header["op"]
        if operation == "started":
            chunk.rank = header["rank"]
            self._output.begin()
        elif operation == "missing":
            frames = [*self._function, *chunk.frames]
            self._pool.owner.resend(chunk.id, header["rank"], frames)
        elif operation == "part":
            self._take(chunk, frames)
        elif operation in ("done", "ended"):
            if chunk.id in self._chunks:
                self._on_end(chunk, header, frames)
                del self._chunks[chunk.id]
        else:
            self._output.handle(header, frames)

    def _on_end(self, chunk: Chunk, header: Header, frames: list[Frame]) -> None:
        if header["op"] == "ended":  # without having run to an end
            self._on_cancelled(header)
        elif header["status"] == "ok":
            facts = self._take(chunk, frames)
            self._sizes.ran(chunk.num_done, facts["seconds"])
            self._give_back(chunk.rest())
        elif header["status"] == "died":
            self._on_death(chunk, header)
        else:
            self.end_with(self._rebuild(header["failure"], frames, chunk.rank))

    def _take(self, chunk: Chunk, frames: list[Frame]) -> dict[str, Any]:
        facts, values = parcels.split(frames)
        for offset, value in enumerate(values, start=facts["first"]):
            index = chunk.items[offset][0]
            record = facts["failed"].get(offset)
            if record is not None:
                self._fail(index, self._rebuild(record, value.frames, chunk.rank))
                continue
            try:
                self._results.add(index, parcels.unwrap(value))
            except PackingError as error:
                error.add_note(f"This is the result of item {index} of the loop.")
                self._fail(index, error)
        chunk.num_done += len(values)
        return facts

    def _rebuild(self, record: Any, frames: Sequence[Frame], rank: int) -> BaseException:
        frames = frames if frames and len(frames[0]) else ()
        return failures.rebuild(record, frames, rank, self._pool.device(rank))

    def _fail(self, index: int, error: BaseException) -> None:
        if self._is_stopping and isinstance(error, KeyboardInterrupt):
            return
        if self._options.collects:
            self._results.add(index, error, failed=True)
        else:
            self.end_with(error)

    def end_with(self, error: BaseException) -> None:
        """Note why the loop ends, and end its chunks; the first reason counts. From any thread."""
        self.error = self.error or error
        if not self._is_stopping:
            self._is_stopping = True
            self._interrupt(force=False)

    def _give_back(self, items: Sequence[Item]) -> None:
        self._returned.extendleft(reversed(items))

    def _on_death(self, chunk: Chunk, header: Header) -> None:
        """Fail the item that ran; what the engine had beside it goes to another one."""
        log = self._pool.owner.log(chunk.rank)
        place = bookmark.read(bookmark.path_beside(log), chunk.number)
        rest = list(enumerate(chunk.rest(), start=chunk.num_done))
        guilty = [item for offset, item in rest if offset == place]
        if not guilty:  # it is not known which one it was: each of them is tried once more
            indices = {index for _, (index, _) in rest}
            guilty = [item for _, item in rest if item[0] in self._retried]
            self._retried |= indices
        for index, parcel in guilty:
            message, code = header["message"], header["exit_code"]
            died = EngineDiedError(message, rank=chunk.rank, exit_code=code)
            died.add_note(note_of(index, parcel))
            self._fail(index, died)
        failed = {index for index, _ in guilty}
        self._give_back([item for _, item in rest if item[0] not in failed])

    def _on_cancelled(self, header: Header) -> None:
        if self._is_stopping or self._stop_after is not None:
            return
        message = header.get("message")
        if message:
            self.end_with(MgpuError(message))
        else:
            self.end_with(PoolClosedError(f"The loop was ended: {header.get('reason')}."))

    def request_stop(self, after: StopAfter) -> None:
        """Let the items that run end by themselves, and start no more. From any thread."""
        if self._stop_after != "step":
            self._stop_after = after
        owner = self._pool.owner
        with contextlib.suppress(PoolClosedError):
            task_ids = list(self._chunks)
            for task_id in set(task_ids) - owner.withdraw(task_ids):
                owner.request_stop(task_id, after)
        self.changed.set()

    def wait(self, timeout_s: float) -> None:
        """Wait for an event."""
        self.changed.wait(timeout_s)
        self.changed.clear()

    def end(self) -> None:
        """End what waits and runs, and take what was finished; within 2 s."""
        deadline_s = time.monotonic() + STOP_S
        self._is_stopping = True
        self._interrupt(force=False)
        while self._chunks and (left_s := deadline_s - time.monotonic()) > 0:
            try:
                self.wait(left_s)
            except KeyboardInterrupt:
                self._interrupt(force=True)

    def _interrupt(self, *, force: bool) -> None:
        with contextlib.suppress(PoolClosedError):
            for task_id in list(self._chunks):
                self._pool.owner.interrupt(task_id, force=force)


def _count(frames: Sequence[Frame]) -> bytes:
    return len(frames).to_bytes(4, "little")
