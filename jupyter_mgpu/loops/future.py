"""The future of a loop: one task in the list, whatever its chunks do."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.loops.results import Results
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.output import publisher
from jupyter_mgpu.output.task_display import TaskDisplay
from jupyter_mgpu.wire import Header


class _LoopControl:
    """What a loop's future asks of its loop."""

    def __init__(
        self, key: str, cancel: Callable[[], None], request_stop: Callable[[StopAfter], None]
    ) -> None:
        self.owned_id = key
        self._cancel = cancel
        self._request_stop = request_stop
        self.displays: list[TaskDisplay] = []

    def cancel_task(self, task_id: str) -> None:  # noqa: ARG002 - there is only one
        self._cancel()

    def request_stop(self, task_id: str, after: StopAfter) -> None:  # noqa: ARG002 - as above
        self._request_stop(after)

    def show_task(self, future: TaskFuture) -> None:
        display = TaskDisplay(future, publisher.capture(), None)
        self.displays.append(display)
        try:
            display.wait()
        finally:
            self.displays.remove(display)


class LoopFuture(TaskFuture):
    """The handle of a loop: its result is the list of all results, in loop order.

    Args:
        task_id: Unique in the pool.
        key: What its chunks have in common for the pool's owner.
        name: What people call the loop.
        results: What it has so far.
        cancel: Ends it.
        request_stop: Lets it start no more items.
    """

    def __init__(
        self,
        task_id: str,
        key: str,
        name: str,
        results: Results,
        cancel: Callable[[], None],
        request_stop: Callable[[StopAfter], None],
    ) -> None:
        self._loop_control = _LoopControl(key, cancel, request_stop)
        super().__init__(task_id, name, self._loop_control, datetime.now(UTC))
        self._results = results

    @property
    def results(self) -> dict[int, Any]:
        """The results so far, by index; also after a failure or a cancel."""
        return self._results.finished()

    def begin(self, now: datetime) -> None:
        """Note that the first item has started."""
        if self.started is None:
            self.started = now
            self._is_running = True

    def handle(self, header: Header) -> None:
        """Take what an item printed or reported."""
        if header["op"] == "report":
            self.metrics.append({"step": header["step"], **header["metrics"]})
        elif header["op"] == "output":
            self._diary.write(header["text"], header.get("dropped", 0))
        for display in list(self._loop_control.displays):
            display.handle(header)
