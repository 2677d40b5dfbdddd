"""Handles for the results of tasks, and ways to wait for them."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, as_completed, wait
from datetime import UTC, datetime
from typing import Any, Protocol

from jupyter_mgpu.callback_thread import run_callback
from jupyter_mgpu.engines import TaskState
from jupyter_mgpu.on_engine.stop_wish import StopAfter, check_after
from jupyter_mgpu.output import view_door
from jupyter_mgpu.output.diary import Diary

__all__ = ["CancelledError", "TaskFuture", "as_completed", "cancel_all", "fetch_next", "wait"]

_order = itertools.count(1)
_log = logging.getLogger("concurrent.futures")  # where callbacks that fail are told


class Control(Protocol):
    """What a future asks of its pool."""

    def cancel_task(self, task_id: str) -> None:
        """End a task."""

    def request_stop(self, task_id: str, after: StopAfter) -> None:
        """Ask a task to end by itself, after its step or its epoch."""

    def show_task(self, future: "TaskFuture") -> None:
        """Stream a task's diary into the current cell until the task ends."""


class TaskFuture(concurrent.futures.Future[Any]):
    """The handle of one task: its state, what it printed and measured, and its result.

    It is a `concurrent.futures.Future`, and may be awaited. Waiting never cancels: a wait that
    is interrupted or times out leaves the task alone.

    Attributes:
        id: Unique in the pool.
        name: What people call the task.
        rank: Where it runs or ran; None while it is queued.
        device: What it runs on, in words.
        metrics: One dict per `report`, oldest first, `step` among its keys.
        progress: 0 to 1 where the task tells it, else None.
        created: When it was submitted (UTC), likewise `started` and `finished`.
        part: Which part of which loop it is, if it is one.
    """

    part: Mapping[str, Any] | None = None

    def __init__(self, task_id: str, name: str, control: Control, created: datetime) -> None:
        super().__init__()
        self.id = task_id
        self.name = name
        self.rank: int | None = None
        self.device: str | None = None
        self.metrics: list[dict[str, Any]] = []
        self.progress: float | None = None
        self.created = created
        self.started: datetime | None = None
        self.finished: datetime | None = None
        self._control = control
        self._diary = Diary()
        self._is_running = False
        self._is_read = False
        self._completion = 0
        self._run_callback = run_callback
        self._wakers: list[Callable[[], None]] = []  # need not wait for callbacks of users

    @property
    def state(self) -> TaskState:
        """Queued, running, finished, failed or cancelled."""
        if self.cancelled():
            return TaskState.CANCELLED
        if self.done():
            return TaskState.FAILED if self.exception() is not None else TaskState.FINISHED
        return TaskState.RUNNING if self._is_running else TaskState.QUEUED

    @property
    def last_metrics(self) -> dict[str, Any]:
        """The metrics reported last; empty before the first report."""
        last = self.metrics[-1] if self.metrics else {}
        return {key: value for key, value in last.items() if value is not None}

    @property
    def diary(self) -> str:
        """What the task has printed so far."""
        return str(self._diary)

    def running(self) -> bool:
        """Tell whether the task runs now."""
        return self._is_running and not self.done()

    def cancel(self) -> bool:
        """End the task, also while it runs; its diary and metrics stay.

        Returns:
            False if it had ended before.
        """
        return self._end()

    def _end(self) -> bool:
        """Cancel the task, whatever it does now."""
        if self._set_cancelled():
            self._control.cancel_task(self.id)
        return self.cancelled()

    def _set_cancelled(self) -> bool:
        """Note that the task is cancelled; False if it had ended before."""
        self._completion = self._completion or next(_order)
        with self._condition:  # another thread may do it in the same moment
            if self.done():
                return False
            super().cancel()
            self.set_running_or_notify_cancel()
        return True

    def request_stop(self, after: StopAfter = "step") -> None:
        """Ask the task to end by itself: `stop_requested()` becomes true in it.

        A task that waits sees it as soon as it runs. What was asked for last does not take back
        what was asked for before: the sooner end counts.

        Args:
            after: "epoch" lets `stop_requested(after="epoch")` alone become true, which `train`
                and the callbacks for other trainers ask at the end of each epoch. A task that
                never asks that goes on.

        Raises:
            ValueError: If `after` is neither.
        """
        check_after(after)
        self._control.request_stop(self.id, after)

    def show(self) -> None:
        """Show the task in this cell, and what it prints, until it ends or the cell is stopped.

        Of a task that has ended, also while no browser was open, all is there: curves and diary.
        """
        view_door.show_future(self)
        self._control.show_task(self)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the task and return its result.

        Args:
            timeout: Seconds to wait; None for as long as it takes.

        Raises:
            TimeoutError: If the task has not ended in time; it goes on.
            CancelledError: If it was cancelled.
            BaseException: Whatever the task raised, with a note that names the rank.
        """
        try:
            return super().result(timeout)
        except (CancelledError, TimeoutError):
            self._explain(timeout)
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the task and return what it raised, or None.

        Raises:
            TimeoutError: If the task has not ended in time; it goes on.
            CancelledError: If it was cancelled.
        """
        try:
            return super().exception(timeout)
        except (CancelledError, TimeoutError):
            self._explain(timeout)
            raise

    def _explain(self, timeout: float | None) -> None:
        if self.cancelled():
            raise CancelledError(f"{self.name!r} was cancelled.") from None
        if not self.done():
            raise TimeoutError(
                f"The task {self.name!r} is still {self.state} after {timeout:g} s. It goes on: "
                "wait for it again, or cancel() it."
            ) from None

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            # Not asyncio.wrap_future: that would cancel the task with the one who waits for it.
            with contextlib.suppress(RuntimeError):  # the loop has ended, and who waited in it
                loop.call_soon_threadsafe(_set_once, waiter)

        with self._condition:
            if not self.done():
                self._wakers.append(wake)
        if not self.done():
            yield from waiter
        return self.result()

    def _invoke_callbacks(self) -> None:
        self._completion = self._completion or next(_order)
        for wake in self._wakers:
            wake()
        if self._done_callbacks:  # type: ignore[attr-defined] # the stdlib's own list
            self._run_callback(self._call_back)

    def _call_back(self) -> None:
        for callback in self._done_callbacks:  # type: ignore[attr-defined] # as above
            try:
                callback(self)
            except BaseException:  # noqa: BLE001 - an exit must not end the thread of them all
                _log.exception("exception calling callback for %r", self)

    def __repr__(self) -> str:
        where = f" on rank {self.rank} ({self.device})" if self.rank is not None else ""
        values = ", ".join(f"{key}={value:.4g}" for key, value in self.last_metrics.items())
        return f"<TaskFuture {self.name!r} {self.state}{where}{': ' + values if values else ''}>"


class NoControl:
    """Stands where a future that ran in this process looks for its pool."""

    def cancel_task(self, task_id: str) -> None:
        """Do nothing: it has ended."""

    def request_stop(self, task_id: str, after: StopAfter) -> None:
        """Do nothing: it has ended."""

    def show_task(self, future: TaskFuture) -> None:
        """Do nothing: it has printed in place."""


def run_in_place(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TaskFuture:
    """Run a call at once in this process, as parfeval does on an engine."""
    name = getattr(fn, "__name__", "call")
    future = TaskFuture("inline", name, NoControl(), datetime.now(UTC))
    try:
        future.set_result(fn(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - the future's exception
        future.set_exception(error)
    return future


def settle(future: TaskFuture, *, result: Any = None, error: BaseException | None = None) -> None:
    """Give a future its result or its exception, unless it was cancelled in this very moment."""
    future.finished = future.finished or datetime.now(UTC)
    with contextlib.suppress(Exception):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _set_once(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


def fetch_next(futures: Iterable[TaskFuture], timeout: float | None = None) -> TaskFuture | None:
    """Wait for the next task to end that was not fetched before, in the order of their ends.

    The future is marked as fetched before it is returned, also when its task failed: its
    `result()` then raises.

    Args:
        futures: Where to look.
        timeout: Seconds to wait; None for as long as it takes.

    Returns:
        The future, or None when none has ended in time.

    Raises:
        ValueError: If every future was fetched before.
    """
    unread = [future for future in futures if not future._is_read]  # noqa: SLF001 - same module
    if not unread:
        raise ValueError(
            "Every one of these futures was fetched before. Submit more, or stop the loop."
        )
    done, _ = wait(unread, timeout, return_when=concurrent.futures.FIRST_COMPLETED)
    if not done:
        return None
    ended = [future for future in unread if future in done]
    first = min(ended, key=lambda future: future._completion)  # noqa: SLF001 - same module
    first._is_read = True  # noqa: SLF001 - same module
    return first


def cancel_all(futures: Sequence[TaskFuture]) -> int:
    """Cancel every future that has not ended.

    Returns:
        How many were cancelled.
    """
    return sum(future._end() for future in list(futures) if not future.done())  # noqa: SLF001 - same module
