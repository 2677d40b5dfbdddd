"""A loop on the engines of a pool, from its first chunk to its last result.

Chunks wait in the pool's queue, about one for each engine that runs one, so that work goes to who
is free and little is read ahead. Events of the chunks come in the pool's delivery thread; the
thread that runs the loop handles them, reads the iterables and makes the next chunks.
"""

import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.client import name_of
from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.errors import EngineDiedError, MgpuError, PackingError, PoolClosedError
from jupyter_mgpu.futures import CancelledError
from jupyter_mgpu.loops.chunk_sizes import ChunkSizes
from jupyter_mgpu.loops.future import LoopFuture
from jupyter_mgpu.loops.items import Item, Items
from jupyter_mgpu.loops.listening import Chunk, Listening
from jupyter_mgpu.loops.options import LoopOptions
from jupyter_mgpu.loops.results import OnResult, Results, keep_results
from jupyter_mgpu.on_engine.chunks import note_of
from jupyter_mgpu.output import failures, publisher
from jupyter_mgpu.output.progress_bar import ProgressBar
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.packing import parcels
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.wire import Frame, Header

CHUNKS_PER_ENGINE = 2
"""One runs, one waits."""
LOOK_S = 0.2
STOP_S = 1.8
"""A stopped loop ends after so long, whatever its items do; they are freed in the background."""


class Loop:
    """One loop.

    Args:
        pool: Where it runs.
        fn: What is called with each item.
        iterables: What is looped over, together.
        options: How.
        on_result: See `Results`.

    Raises:
        PackingError: If the function cannot be pickled.
        PoolClosedError: If the pool has ended.
    """

    def __init__(
        self,
        pool: Pool,
        fn: Callable[..., Any],
        iterables: Sequence[Iterable[Any]],
        options: LoopOptions,
        on_result: OnResult | None = None,
    ) -> None:
        function = packing.pack((fn,), copy=True, labels=("function",))
        self._pool = pool
        self._options = options
        self._since_s = time.monotonic()
        self._ranks = () if options.workers is None else _choose_ranks(pool, options.workers)
        self._num_engines = len(self._ranks) or pool.size
        self._items = Items(iterables)
        self._sizes = ChunkSizes(self._num_engines, options.chunk)
        self._results = Results(on_result)
        self._returned: deque[Item] = deque()
        self._num_returned = 0
        self._retried: set[int] = set()
        self._chunks: dict[str, Chunk] = {}  # submitted and not over
        self._error: BaseException | None = None
        self._is_stopping = False
        submission = pool.submission
        self._key = submission.next_id("function of loop ")
        name = options.name or submission.name_for(fn)
        self._future = LoopFuture(submission.next_id("loop"), name, self._results, self.cancel)
        place = publisher.capture()
        self._bar = ProgressBar(place, options.name or f"parfor {name_of(fn)}")
        self._listening = Listening(pool, self._future, function, place)
        submission.open_loop(self._future)

    # --- life --------------------------------------------------------------------------

    def start(self) -> LoopFuture:
        """Run it in a thread of its own, and return its future."""
        run = contextvars.copy_context().run  # what the iterables print stays in this cell
        threading.Thread(
            target=run, args=(self._run_for_future,), name="mgpu-loop", daemon=True
        ).start()
        return self._future

    def _run_for_future(self) -> None:
        with contextlib.suppress(BaseException):  # the future has it
            self.run()

    def run(self) -> list[Any]:
        """Run it to its end.

        Returns:
            The results in loop order.

        Raises:
            KeyboardInterrupt: At a Stop, within 2 s; a second Stop replaces what still runs.
            BaseException: What the first failing item raised, or an iterable. Like the one above
                it has what was finished in `results`.
        """
        error = self._drive()
        try:
            if error is not None:
                self._end_chunks()
                keep_results(error, self._results)
        finally:
            self._close(error)
        if error is not None:
            raise error
        return self._results.in_order()

    def cancel(self) -> None:
        """End it, from any thread."""
        self._error = self._error or CancelledError("The loop was cancelled.")
        self._listening.wake.set()

    def _drive(self) -> BaseException | None:
        """Work until all items have ended; returns why it ended before that."""
        try:
            self._feed()
            while self._chunks and self._error is None:
                self._handle_events(LOOK_S)
                self._feed()
        except KeyboardInterrupt:
            return KeyboardInterrupt()
        except BaseException as error:  # noqa: BLE001 - raised once the chunks have ended
            return error
        return self._error

    def _close(self, error: BaseException | None) -> None:
        outcome = _outcome(error)
        results, future = self._results, self._future
        if isinstance(error, KeyboardInterrupt):
            _explain_stop(error, results, self._items.total)
        self._listening.finish()
        self._bar.finish(results.num_done, self._items.total, results.num_failed, outcome)
        with contextlib.suppress(PoolClosedError):
            self._pool.values.release(self._key, self._pool.ranks)
        future.finished = datetime.now(UTC)
        with contextlib.suppress(Exception):  # it was cancelled
            if error is None:
                future.set_result(results.in_order())
            else:
                future.set_exception(error)
        self._pool.submission.loop_ended(future)

    # --- chunks ------------------------------------------------------------------------

    def _feed(self) -> None:
        """Submit chunks until each engine has one that runs and one that waits."""
        while self._error is None and len(self._chunks) < self._num_engines * CHUNKS_PER_ENGINE:
            items = self._next_items()
            if not items:
                return
            self._submit(items)

    def _next_items(self) -> list[Item]:
        size = self._sizes.next(self._num_left())
        if self._returned:
            return [self._returned.popleft() for _ in range(min(size, len(self._returned)))]
        items = []
        for index, parcel in self._items.take(size):
            if isinstance(parcel, Exception):
                self._fail(index, parcel)
            else:
                items.append((index, parcel))
        if not items and not self._items.is_exhausted and self._error is None:
            return self._next_items()  # none of these could be packed
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
            name=self._future.name,
            header={"kind": "chunk", "loop": self._key, "chunk": number},
            frames=[(0).to_bytes(4, "little"), *frames],  # without the function
            ranks=self._ranks,
            since_s=self._since_s,
        )
        self._chunks[chunk.id] = chunk
        self._pool.submission.chunk(task, self._listening.listener(chunk))

    # --- events ------------------------------------------------------------------------

    def _handle_events(self, timeout_s: float) -> None:
        for header, frames in self._listening.events(timeout_s):
            self._handle(header, frames)
        done, total = self._results.num_done, self._items.total
        if total:
            self._future.progress = min(done / total, 1.0)
        self._bar.update(done, total, self._results.num_failed)

    def _handle(self, header: Header, frames: list[Frame]) -> None:
        """Take an event. A Stop may break in at any place: then it is taken once more."""
        chunk = self._chunks.get(header["task"])
        if chunk is None:
            return
        if header["op"] == "part":
            self._take(chunk, frames)
            return
        if header["op"] == "ended":  # without having run to an end
            self._on_ended(header)
        elif header["status"] == "ok":
            facts = self._take(chunk, frames)
            self._sizes.ran(chunk.num_done, facts["seconds"])
            self._give_back(chunk.rest())
        elif header["status"] == "died":
            self._on_death(chunk, header)
        else:
            self._end_with(self._rebuild(header["failure"], frames, header["rank"]))
        del self._chunks[chunk.id]

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
        chunk.num_done = max(chunk.num_done, facts["first"] + len(values))
        return facts

    def _rebuild(self, record: Any, frames: Sequence[Frame], rank: int) -> BaseException:
        frames = frames if len(frames[0]) else ()
        return failures.rebuild(record, frames, rank, self._pool.device(rank))

    def _fail(self, index: int, error: BaseException) -> None:
        if self._is_stopping and isinstance(error, KeyboardInterrupt):
            return
        if self._options.collects:
            self._results.add(index, error, failed=True)
        else:
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        self._error = self._error or error

    def _give_back(self, items: Sequence[Item]) -> None:
        self._returned.extendleft(reversed(items))

    def _on_death(self, chunk: Chunk, header: Header) -> None:
        """Fail the item that ran; what the engine had beside it is tried once more elsewhere."""
        again = []
        for offset, (index, parcel) in enumerate(chunk.rest(), start=chunk.num_done):
            if offset != chunk.place and index not in self._retried:
                self._retried.add(index)
                again.append((index, parcel))
                continue
            died = EngineDiedError(
                header["message"], rank=header["rank"], exit_code=header["exit_code"]
            )
            died.add_note(note_of(index, parcel))
            self._fail(index, died)
        self._give_back(again)

    def _on_ended(self, header: Header) -> None:
        if self._is_stopping:
            return
        message = header.get("message")
        if message:
            self._end_with(MgpuError(message))
        else:
            self._end_with(PoolClosedError(f"The loop was ended: {header.get('reason')}."))

    def _end_chunks(self) -> None:
        """End what waits and runs, and take what was finished; within 2 s."""
        self._is_stopping = True
        deadline_s = time.monotonic() + STOP_S
        self._interrupt(force=False)
        while self._chunks and (left_s := deadline_s - time.monotonic()) > 0:
            try:
                self._handle_events(left_s)
            except KeyboardInterrupt:
                self._interrupt(force=True)

    def _interrupt(self, *, force: bool) -> None:
        with contextlib.suppress(PoolClosedError):
            for task_id in list(self._chunks):
                self._pool.owner.interrupt(task_id, force=force)


def _choose_ranks(pool: Pool, number: int) -> tuple[int, ...]:
    """Choose ranks for a loop: those that are idle first."""
    engines = sorted(pool.engines, key=lambda engine: engine.state is not EngineState.IDLE)
    return tuple(sorted(engine.rank for engine in engines[:number]))


def _outcome(error: BaseException | None) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    if isinstance(error, CancelledError):
        return "cancelled"
    return "" if error is None else "failed"


def _explain_stop(error: KeyboardInterrupt, results: Results, total: int | None) -> None:
    of = "" if total is None else f" of {total:,}"
    text = f"The loop was stopped when {results.num_done:,}{of} items were finished."
    if results.values:
        text += " Their results: import sys; sys.last_value.results"
    error.args = (text,)
    # IPython shows this instead of the lines in here where the notebook waited.
    error.__dict__["_render_traceback_"] = lambda: [f"KeyboardInterrupt: {text}"]
