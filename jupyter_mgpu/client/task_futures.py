"""The futures of a pool's tasks: what the owner tells of a task becomes their state."""

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.client.ended_task import EndedTask, ended_task, told_task
from jupyter_mgpu.engines import TaskState
from jupyter_mgpu.errors import EngineDiedError, MgpuError, PoolClosedError, TaskTimeoutError
from jupyter_mgpu.futures import TaskFuture, settle
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.output import failures, publisher
from jupyter_mgpu.output.task_display import TaskDisplay
from jupyter_mgpu.owner import told_loops
from jupyter_mgpu.owner.pool_owner import PoolOwner
from jupyter_mgpu.wire import Frame, Header

MAX_ENDED = 200


class TaskFutures:
    """The futures of queued and running tasks, and a line for each of the last that ended.

    It is also what a future asks to end or show its task.

    Args:
        owner: The pool's owner.
    """

    def __init__(self, owner: PoolOwner) -> None:
        self._owner = owner
        self._open: dict[str, TaskFuture] = {}
        self._result_ranks: dict[str, int] = {}  # of a training on several ranks
        self._displays: dict[str, TaskDisplay] = {}
        self._ended: deque[EndedTask] = deque(maxlen=MAX_ENDED)

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, future: TaskFuture, result_rank: int | None = None) -> None:
        """Take the future of a task that is about to be submitted.

        Args:
            future: The future.
            result_rank: For one that runs on several ranks, that whose result counts.
        """
        if result_rank is not None:
            self._result_ranks[future.id] = result_rank
        self._open[future.id] = future

    def restore(
        self, tasks: Iterable[Mapping[str, Any]], ended: Iterable[Mapping[str, Any]]
    ) -> None:
        """Take over the tasks of a kept pool's earlier kernels, as its keeper describes them."""
        for told in tasks:
            future = TaskFuture(told["id"], told["name"], self, _time(told["created"]))
            if told["state"] == TaskState.RUNNING:
                self._on_started(future, told)
                future.started = _time(told["started"])
            future._diary.write(told["diary"])  # noqa: SLF001 - the future's own side of the pool
            future.metrics.extend(told["metrics"])
            future.progress = told["progress"]
            future.part = told["part"]
            self.add(future, told["result_rank"])
        self._ended.extend(map(told_task, ended))

    def discard(self, task_id: str) -> None:
        """Forget a task that did not get as far as the owner."""
        self._open.pop(task_id, None)

    def end(self, future: TaskFuture) -> None:
        """List a task among those that have ended, if it was open."""
        if self._open.pop(future.id, None) is not None:
            self._remember(future)

    def all(self) -> list[TaskFuture]:
        """Return the futures of queued and running tasks."""
        return list(self._open.values())

    def open_ids(self) -> list[str]:
        """Return the ids of queued and running tasks; a loop ends with its chunks."""
        return [future.id for future in self.all() if future._control is self]  # noqa: SLF001 - the future's own side of the pool

    def rows(self) -> list[dict[str, Any]]:
        """Describe the tasks: running, queued, and the last that ended; a loop is one of them."""
        tasks: list[TaskFuture | EndedTask] = [*self.all(), *reversed(self._ended)]
        told = [_told(task) for task in tasks]
        known = {task["id"] for task in told}  # the future of a loop tells more than its parts
        return [
            _row(task)
            for task in told_loops.fold(t for t in told if told_loops.loop_of(t) not in known)
        ]

    def ended(self) -> list[EndedTask]:
        """Return what is kept of the last tasks that have ended, oldest first."""
        return list(self._ended)

    # --- what futures ask --------------------------------------------------------------

    def cancel_task(self, task_id: str) -> None:
        """End a task; see `TaskFuture.cancel`."""
        future = self._open.pop(task_id, None)
        if future is not None:
            self._remember(future)
        with contextlib.suppress(PoolClosedError):
            self._owner.cancel(task_id)

    def withdraw(self, futures: Iterable[TaskFuture]) -> None:
        """Cancel those tasks that still wait."""
        by_id = {future.id: future for future in futures if not future.done()}
        if not by_id:
            return
        with contextlib.suppress(PoolClosedError):
            for future in map(by_id.__getitem__, self._owner.withdraw(list(by_id))):
                future._set_cancelled()  # noqa: SLF001 - the future's own side of the pool
                self.end(future)

    def request_stop(self, task_id: str, after: StopAfter) -> None:
        """Ask a task to end by itself; see `TaskFuture.request_stop`."""
        with contextlib.suppress(PoolClosedError):
            self._owner.request_stop(task_id, after)

    def show_task(self, future: TaskFuture) -> None:
        """Stream a task's diary into the current cell; see `TaskFuture.show`."""
        log = self._owner.log(future.rank) if future.rank is not None else None
        display = TaskDisplay(future, publisher.capture(), str(log) if log else None)
        self._displays[future.id] = display
        try:
            display.wait()
        finally:
            self._displays.pop(future.id, None)

    # --- the owner's events ------------------------------------------------------------

    def handle_at_once(self, header: Header, frames: list[Frame]) -> bool:
        """Take an event if that is quick and runs no code of users; False if it is not."""
        future = self._open.get(header.get("task", ""))
        if future is None or future.id in self._displays or future.id in self._result_ranks:
            return False
        if header["op"] == "started":
            self._on_started(future, header)
            return True
        if header["op"] == "done" and header["status"] == "ok":
            with contextlib.suppress(packing.NotPlainError):
                settle(future, result=packing.unpack_plain(frames))
                return True
        if header["op"] == "ended" and future.done():
            self._on_ended(future, header)
            return True
        return False

    def handle(self, header: Header, frames: list[Frame]) -> None:
        """Take an event, if it is one of an open task."""
        future = self._open.get(header.get("task", ""))
        if future is None:
            return
        operation = header["op"]
        if operation == "started":
            if self._result_ranks.get(future.id, header["rank"]) == header["rank"]:
                self._on_started(future, header)
        elif operation == "output":
            future._diary.write(header["text"], header.get("dropped", 0))  # noqa: SLF001 - the future's own side of the pool
        elif operation == "report":
            future.metrics.append({"step": header["step"], **header["metrics"]})
        elif operation == "progress":
            future.progress = header["value"]
        elif operation == "retry":
            future._is_running = False  # noqa: SLF001 - the future's own side of the pool
        elif operation == "done":
            self._on_done(future, header, frames)
        elif operation == "ended":
            self._on_ended(future, header)
        display = self._displays.get(future.id)
        if display is not None:
            display.handle(header)

    def _on_started(self, future: TaskFuture, header: Mapping[str, Any]) -> None:
        future.rank = header["rank"]
        future.device = self._owner.device(header["rank"])
        future.started = datetime.now(UTC)
        future._is_running = True  # noqa: SLF001 - the future's own side of the pool

    def _on_done(self, future: TaskFuture, header: Header, frames: list[Frame]) -> None:
        """Give a future the result or the exception that its engine sent."""
        rank = header["rank"]
        if header["status"] == "ok":
            if self._result_ranks.get(future.id, rank) != rank:
                return
            try:
                result = packing.unpack(frames)
            except BaseException as error:  # noqa: BLE001 - becomes the future's exception
                error.add_note(f"The result of the task {future.name!r} came from rank {rank}.")
                settle(future, error=error)
            else:
                settle(future, result=result)
        elif header["status"] == "died":
            died = EngineDiedError(header["message"], rank=rank, exit_code=header["exit_code"])
            settle(future, error=died)
        else:
            device = self._owner.device(rank)
            settle(future, error=failures.rebuild(header["failure"], frames, rank, device))

    def _on_ended(self, future: TaskFuture, header: Header) -> None:
        self._open.pop(future.id, None)
        self._result_ranks.pop(future.id, None)
        future.finished = future.finished or datetime.now(UTC)
        if not future.done():
            _settle_undone(future, header)
        self._remember(future)

    def _remember(self, future: TaskFuture) -> None:
        """Keep what is told of an ended task; its result goes with its future."""
        self._ended.append(ended_task(future))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _settle_undone(future: TaskFuture, header: Header) -> None:
    """End a future whose task sent no result: it was cancelled, or it never ran."""
    if header.get("reason") == "timeout":
        settle(future, error=TaskTimeoutError(header["message"]))
    elif header["state"] == "cancelled":
        future._set_cancelled()  # noqa: SLF001 - the future's own side of the pool
    else:
        message = header.get("message") or f"The task {future.name!r} did not run."
        settle(future, error=MgpuError(message))


def _told(task: TaskFuture | EndedTask) -> dict[str, Any]:
    names = ("id", "name", "rank", "created", "started", "finished", "progress", "last_metrics")
    return {name: getattr(task, name) for name in (*names, "part")} | {"state": str(task.state)}


def _row(task: Mapping[str, Any]) -> dict[str, Any]:
    begun, ended = task["started"], task["finished"] or datetime.now(UTC)
    return {
        "name": task["name"],
        "state": task["state"],
        "rank": task["rank"],
        "seconds": round((ended - begun).total_seconds(), 1) if begun else None,
        "progress": task["progress"],
        "metrics": task["last_metrics"],
    }
