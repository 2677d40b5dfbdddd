"""A pool as the standard library knows it: a `concurrent.futures.Executor`."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Any, Unpack

from jupyter_mgpu.callback_thread import CallbackThread
from jupyter_mgpu.client.submission import Submission, TaskChoices, name_of
from jupyter_mgpu.client.task_futures import TaskFutures
from jupyter_mgpu.errors import PackingError
from jupyter_mgpu.futures import Control, NoControl, TaskFuture, cancel_all
from jupyter_mgpu.on_engine.calling import call_each


class CallFuture(TaskFuture):
    """The future of an executor's call; `cancel` leaves a running call alone."""

    def __init__(
        self,
        task_id: str,
        name: str,
        control: Control,
        created: datetime,
        *,
        executor: "PoolExecutor",
    ) -> None:
        super().__init__(task_id, name, control, created)
        self._executor = executor

    def cancel(self) -> bool:
        """Cancel the call if it still waits.

        Returns:
            False if it runs or has ended.
        """
        if not self.done():
            self._executor.withdraw([self])
        return self.cancelled()

    def _invoke_callbacks(self) -> None:
        super()._invoke_callbacks()
        self._executor.settled(self)


class PoolExecutor(Executor):
    """Calls functions on the engines of a pool, as the standard library's executors do.

    A lost engine is replaced: its call fails with EngineDiedError, the others go on. A Stop that
    leaves the `with` block ends the calls, also those that run.

    Args:
        submission: Submits to the pool.
        futures: The futures of its tasks.
        count_engines: Tells the size of the pool.
        **choices: How each call is run.
    """

    def __init__(
        self,
        submission: Submission,
        futures: TaskFutures,
        count_engines: Callable[[], int],
        **choices: Unpack[TaskChoices],
    ) -> None:
        self._submission = submission
        self._pool_futures = futures
        self._count_engines = count_engines
        self._choices = choices
        # Of its own: a callback of `after_each` may wait for calls that need callbacks to go on.
        self._callbacks = CallbackThread("mgpu-executor-callbacks")
        self._is_shut_down = False
        self._lock = threading.RLock()  # of submitting; pickling may submit as well
        self._open: set[CallFuture] = set()
        self._changed = threading.Condition()  # of what is open

    @property
    def _max_workers(self) -> int:
        """The size of the pool, where libraries look for it in the standard executors."""
        return self._count_engines()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CallFuture:
        """Call a function on the next free engine.

        What cannot be pickled is told by the future.

        Raises:
            RuntimeError: If the executor or its pool was shut down.
        """
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            return self._submit(fn, args, kwargs)

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallFuture:
        made: list[CallFuture] = []

        def make(task_id: str, name: str, control: Control, created: datetime) -> CallFuture:
            future = CallFuture(task_id, name, control, created, executor=self)
            future._run_callback = self._callbacks.run  # noqa: SLF001 - our own future
            made.append(future)
            with self._changed:
                self._open.add(future)
            return future

        try:
            self._submission.call(fn, args, kwargs, make_future=make, **self._choices)
        except PackingError as error:
            make("unsent", name_of(fn), NoControl(), datetime.now(UTC)).set_exception(error)
        except BaseException:  # a Stop may come when it is half submitted
            cancel_all(made)
            raise
        return made[0]

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        """Call a function once per item; yields the results in the items' order.

        Args:
            fn: What to call.
            *iterables: Its arguments, read as `zip` reads them.
            timeout: Seconds from now after which waiting for a result fails.
            chunksize: How many items go to an engine together.
            buffersize: Read no more than so many calls ahead of the results; all by default.

        Raises:
            TimeoutError: While iterating; what still waits is cancelled.
            BaseException: What a call raised, in its turn; what still waits is cancelled.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0.")
        end_s = None if timeout is None else time.monotonic() + timeout
        items = zip(*iterables, strict=False)
        if chunksize == 1:
            calls = (self.submit(fn, *item) for item in items)
            return self._results(deque(itertools.islice(calls, buffersize)), calls, end_s)
        chunks = iter(lambda: list(itertools.islice(items, chunksize)), [])
        calls = (self.submit(call_each, fn, chunk) for chunk in chunks)
        return _flat(self._results(deque(itertools.islice(calls, buffersize)), calls, end_s))

    def _results(
        self, futures: deque[CallFuture], rest: Iterator[CallFuture], end_s: float | None
    ) -> Iterator[Any]:
        try:
            while futures:
                left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
                futures[0].result(left_s)
                futures.extend(itertools.islice(rest, 1))
                yield futures.popleft().result()
        except KeyboardInterrupt:
            cancel_all(list(futures))
            raise
        finally:
            self.withdraw(futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the standard library's signature
        """Take no more calls; the pool goes on.

        Args:
            wait: Return when every call has ended and every callback has run.
            cancel_futures: Cancel the calls that still wait.
        """
        with self._lock:
            self._is_shut_down = True
        if cancel_futures:
            self.withdraw(self._all_open())
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: not self._open)
            self._callbacks.drain()

    def end_all(self) -> None:
        """End every call, also those that run."""
        cancel_all(self._all_open())

    def __exit__(self, *exception: object) -> None:
        try:
            if exception[0] is KeyboardInterrupt:
                self.end_all()
            self.shutdown()
        except KeyboardInterrupt:
            self.end_all()
            raise

    def withdraw(self, futures: Iterable[CallFuture]) -> None:
        """Cancel those calls that still wait."""
        self._pool_futures.withdraw(futures)

    def settled(self, future: CallFuture) -> None:
        """Take note that a call has ended and that its callbacks are on their way."""
        with self._changed:
            self._open.discard(future)
            self._changed.notify_all()

    def _all_open(self) -> list[CallFuture]:
        with self._changed:
            return list(self._open)


def _flat(chunks: Iterator[list[Any]]) -> Iterator[Any]:
    for chunk in chunks:
        chunk.reverse()
        while chunk:
            yield chunk.pop()  # no result is held here once it was taken
