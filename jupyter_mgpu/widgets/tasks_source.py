"""Tasks as sources of views: all of this notebook, or one."""

import threading
import weakref
from typing import Any

from jupyter_mgpu.client import EndedTask, first_line
from jupyter_mgpu.engines import TaskState
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.pools import open_pools
from jupyter_mgpu.widgets.future_source import FutureSource, ask, id_of_pool, place_of
from jupyter_mgpu.widgets.sources import shared
from jupyter_mgpu.widgets.states import State, parts
from jupyter_mgpu.widgets.states.tasks import DIARY_CHARS, MAX_TASKS, TaskFacts, tasks_state

CONTROLS = ("cancel", "request_stop")


class TasksSource:
    """All tasks of this notebook's pools; it never ends."""

    def __init__(self) -> None:
        self._seen: list[weakref.ref[Pool]] = []
        self._lock = threading.Lock()

    def state(self, limit: int) -> State:  # noqa: ARG002 - its curves are small
        """Make the tasks' state."""
        shown: list[TaskFacts] = []
        num_more = 0
        for pool in self._pools():
            tasks, num_waiting = _tasks_of(pool)
            shown += tasks
            num_more += num_waiting
        return tasks_state(shown, num_more_queued=num_more)

    def _pools(self) -> list[Pool]:
        """Return the open pools, and those that were open before and are still known."""
        with self._lock:
            known = [pool for seen in self._seen if (pool := seen()) is not None]
            known += [pool for pool in open_pools() if pool not in known]
            self._seen = [weakref.ref(pool) for pool in known]
            return known

    def has_ended(self) -> bool:
        """Never: there may be more tasks."""
        return False

    def act(self, action: dict[str, Any]) -> str:
        """Stop one task; see `Source.act`."""
        for pool in open_pools():
            for future in pool.tasks():
                if id_of(pool.name, future) == action["task"]:
                    return ask(future, future.name, action["action"])
        raise MgpuError("The task has ended.")


class TaskSource(FutureSource):
    """One task.

    Args:
        future: It is let go when it has ended: its result may be large.
    """

    def __init__(self, future: TaskFuture) -> None:
        super().__init__(future)
        self._last = task_facts(self._pool, future, self._place(future))
        self._lock = threading.Lock()

    def state(self, limit: int) -> State:  # noqa: ARG002 - its curve is small
        """Make the task's state."""
        with self._lock:  # several views share it: an older state must not come after the last one
            future = self._future
            if future is not None:
                has_ended = future.done()  # before all else is read
                self._last = task_facts(self._pool, future, self._place(future))
                if has_ended:
                    self._future = None
            last = self._last
        is_final = last.state not in ("queued", "running")
        return tasks_state([last], final=is_final, diary_chars=DIARY_CHARS)


def tasks_source() -> TasksSource:
    """Return the source of all views of the tasks."""
    return shared("tasks", TasksSource)


def task_source(future: TaskFuture) -> TaskSource:
    """Return the source of one task's views."""
    return shared(("task", id(future), future.created), lambda: TaskSource(future))


def _tasks_of(pool: Pool) -> tuple[list[TaskFacts], int]:
    """Read the tasks of a pool that a view can list, and how many more wait."""
    ended = pool.ended_tasks()
    known = {task.id for task in ended}
    live = [future for future in pool.tasks() if future.id not in known]
    queued = [future for future in live if future.state is TaskState.QUEUED]
    waiting = {future.id for future in queued[MAX_TASKS:]}
    pool_id = id_of_pool(pool)
    shown = [
        task_facts(pool.name, future, place_of(pool_id, future))
        for future in live
        if future.id not in waiting
    ]
    return [*shown, *(task_facts(pool.name, task) for task in ended)], len(waiting)


def id_of(pool_name: str, task: TaskFuture | EndedTask) -> str:
    """Name a task among those of all pools."""
    return f"{pool_name}/{task.id}"


def task_facts(
    pool_name: str, task: TaskFuture | EndedTask, place: parts.Place | None = None
) -> TaskFacts:
    """Read what is known of a task."""
    is_running = task.state is TaskState.RUNNING
    return TaskFacts(
        id=id_of(pool_name, task),
        name=task.name,
        pool=pool_name,
        state=str(task.state),
        rank=task.rank,
        created=parts.seconds_of(task.created),
        started=parts.seconds_of(task.started),
        finished=parts.seconds_of(task.finished),
        progress=task.progress,
        metrics=task.metrics,
        diary=task.diary[-DIARY_CHARS:],
        error=_error_of(task),
        controls=CONTROLS if is_running else CONTROLS[:1],
        place=place,
    )


def _error_of(task: TaskFuture | EndedTask) -> str | None:
    if isinstance(task, EndedTask):
        return task.error
    return first_line(task.exception()) if task.state is TaskState.FAILED else None
