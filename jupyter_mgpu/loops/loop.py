"""A loop on the engines of a pool: its start, its end, and what people see of it."""

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.client import name_of
from jupyter_mgpu.errors import PoolClosedError
from jupyter_mgpu.futures import CancelledError, settle
from jupyter_mgpu.loops.chunk_output import ChunkOutput
from jupyter_mgpu.loops.flight import Flight
from jupyter_mgpu.loops.future import LoopFuture
from jupyter_mgpu.loops.items import Items
from jupyter_mgpu.loops.options import LoopOptions
from jupyter_mgpu.loops.results import OnResult, Results, keep_results
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.output import publisher
from jupyter_mgpu.output.progress_bar import ProgressBar
from jupyter_mgpu.pool import Pool

LOOK_S = 0.2

OnPacked = Callable[[int], None]
"""Takes the bytes of the function, with all that it uses, before anything is sent."""


class Loop:
    """One loop.

    Args:
        pool: Where it runs.
        fn: What is called with each item.
        iterables: What is looped over, together.
        options: How.
        on_result: See `Results`.
        on_packed: See `OnPacked`.

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
        on_packed: OnPacked | None = None,
    ) -> None:
        share = pool.owner.store.place
        with packing.companions.collect(pool.line) as self._companions:
            function = packing.pack((fn,), copy=True, labels=("function",), place=share)
        if on_packed is not None:
            on_packed(packing.count_bytes(function))
        submission = pool.submission
        name = options.name or submission.name_for(fn)
        place = publisher.capture()
        self._pool = pool
        self._key = submission.next_id("function of loop ")
        self._items = Items(iterables, share)
        self._results = Results(on_result)
        self._future = LoopFuture(
            submission.next_id("loop"),
            self._key,
            name,
            self._results,
            self.cancel,
            self.request_stop,
        )
        self._output = ChunkOutput(pool, self._future, place)
        self._flight = Flight(
            pool, name, function, self._key, options, self._items, self._results, self._output
        )
        self._bar = ProgressBar(place, options.name or f"parfor {name_of(fn)}")
        submission.open_loop(self._future)

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
                self._flight.end()
                keep_results(error, self._results)
        finally:
            self._close(error)
        if error is not None:
            raise error
        return self._results.in_order()

    def cancel(self) -> None:
        """End it, from any thread."""
        self._flight.end_with(CancelledError("The loop was cancelled."))
        self._flight.changed.set()
        self._pool.submission.loop_ended(self._future)

    def request_stop(self, after: StopAfter) -> None:
        """Let the items that run end by themselves, and start no more; from any thread."""
        self._flight.request_stop(after)

    def _drive(self) -> BaseException | None:
        """Work until all items have ended; returns why it ended before that."""
        try:
            while (has_fed := self._flight.feed()) or not self._flight.is_over:
                self._flight.wait(0 if has_fed else LOOK_S)
                self._results.hand_over()
                self._show_progress()
            self._results.hand_over()  # what came in the last moment
        except KeyboardInterrupt:
            return KeyboardInterrupt()
        except BaseException as error:  # noqa: BLE001 - raised once the chunks have ended
            return error
        if self._flight.error is None and self._flight.is_cut_short:
            return CancelledError("The loop was asked to stop.")
        return self._flight.error

    def _show_progress(self) -> None:
        done, total = self._results.num_done, self._items.total
        if total:
            self._future.progress = min(done / total, 1.0)
        status = "" if self._future.started else "waits for a free engine"
        self._bar.update(done, total, self._results.num_failed, status)

    def _close(self, error: BaseException | None) -> None:
        results, future = self._results, self._future
        if isinstance(error, KeyboardInterrupt):
            _explain_stop(error, results, self._items.total)
        self._output.finish()
        self._show_progress()
        self._bar.finish(results.num_done, self._items.total, results.num_failed, _outcome(error))
        with contextlib.suppress(PoolClosedError):
            self._pool.values.release(self._key, self._pool.ranks)
        self._companions.clear()
        if isinstance(error, CancelledError):
            future.finished = datetime.now(UTC)
            future.cancel()
        else:
            settle(future, result=results.in_order() if error is None else None, error=error)
        self._pool.submission.loop_ended(future)


def _outcome(error: BaseException | None) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    if isinstance(error, CancelledError):
        return "cancelled"
    return "" if error is None else "failed"


def _explain_stop(error: KeyboardInterrupt, results: Results, total: int | None) -> None:
    of = "" if total is None else f" of {total:,}"
    text = f"The loop was stopped when {results.num_done:,}{of} items were finished."
    if results.num_done:
        text += " Their results: import sys; sys.last_value.results"
    error.args = (text,)
    # IPython shows this instead of the lines in here where the notebook waited.
    error.__dict__["_render_traceback_"] = lambda: [f"KeyboardInterrupt: {text}"]
