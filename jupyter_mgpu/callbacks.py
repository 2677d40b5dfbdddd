"""What is to happen when tasks end: functions of the user, one after the other in one thread.

What they print and show appears in the cell that registered them, and so do their errors.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu.callback_thread import run_callback
from jupyter_mgpu.futures import NoControl, TaskFuture, settle
from jupyter_mgpu.output.cell_context import CellContext

_numbers = itertools.count(1)


def after_each(
    futures: Iterable[Future[Any]], fn: Callable[[Any], Any], *, pass_future: bool = False
) -> list[TaskFuture]:
    """Call a function in this kernel with the result of each task, as soon as that has ended.

    Args:
        futures: The tasks; they may have ended.
        fn: Takes a result. It may draw, print and change widgets.
        pass_future: Call it with the futures, also those of failed and cancelled tasks, which are
            passed over otherwise.

    Returns:
        One future per task, in the same order: what fn returned or raised. Where a task was passed
        over, its exception. They may be waited for and used in `after_each` or `after_all` again.
    """
    return [_Callback(fn, [future], pass_future=pass_future).future for future in futures]


def after_all(
    futures: Iterable[Future[Any]],
    fn: Callable[[list[Any]], Any],
    *,
    pass_future: bool = False,
) -> TaskFuture:
    """Call a function in this kernel once, with the list of all results, when all tasks have ended.

    Args:
        futures: The tasks.
        fn: Takes the results, in the order of the futures.
        pass_future: Call it with the list of futures, also if some have failed; otherwise it is
            not called then.

    Returns:
        What fn returned or raised; the first failed task's exception where it was not called.
    """
    return _Callback(fn, list(futures), pass_future=pass_future, is_list=True).future


class _Callback:
    """One call that is to come."""

    def __init__(
        self,
        fn: Callable[[Any], Any],
        futures: Sequence[Future[Any]],
        *,
        pass_future: bool,
        is_list: bool = False,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"A {type(fn).__name__} was given where a function is called.")
        name = getattr(fn, "__name__", "callback")
        number = next(_numbers)
        self.future = TaskFuture(
            f"callback{number}", f"{name}-{number}", NoControl(), datetime.now(UTC)
        )
        self._fn = fn
        self._futures = futures
        self._pass_future = pass_future
        self._is_list = is_list
        self._cell = CellContext()
        self._num_left = len(futures)
        self._lock = threading.Lock()
        for future in futures:
            future.add_done_callback(self._on_done)
        if not futures:
            run_callback(self._run)

    def _on_done(self, _: Any) -> None:
        with self._lock:
            self._num_left -= 1
            is_last = self._num_left == 0
        if is_last:
            run_callback(self._run)

    def _run(self) -> None:
        if self.future.done():  # cancelled
            return
        try:
            values = self._values()
        except BaseException as error:  # noqa: BLE001 - the task's own; it is in the future
            settle(self.future, error=error)
            return
        self.future._is_running = True  # noqa: SLF001 - our own future
        try:
            argument = values if self._is_list else values[0]
            settle(self.future, result=self._cell.run(self._fn, argument))
        except BaseException as error:  # noqa: BLE001 - shown in the cell that registered it
            settle(self.future, error=error)
            self._cell.show_error(f"The callback {self.future.name!r} failed:", error)

    def _values(self) -> list[Any]:
        if self._pass_future:
            return list(self._futures)
        return [future.result() for future in self._futures]
