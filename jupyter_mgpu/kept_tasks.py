"""Tasks of kept pools as they are seen from outside: by other kernels and the command line."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu import control
from jupyter_mgpu.control import Look
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.owner import journal

MOST_WAITING = 50
"""So many of the results that wait on disk are listed."""


def waiting(looks: Iterable[Look]) -> list[dict[str, Any]]:
    """List the tasks of kept pools that have ended, newest first, except those listed by a pool.

    Args:
        looks: The pools that list their own.
    """
    listed = {
        (look.pool.name, task["id"], _created(task))
        for look in looks
        if look.answer
        for task in [*look.answer["tasks"], *look.answer["ended"]]
    }
    return [
        {**task, "pool_id": None}
        for task in journal.read_kept(MOST_WAITING)
        if (task["pool"], task["id"], _created(task)) not in listed
    ]


def _created(task: Mapping[str, Any]) -> str | None:
    """Tell tasks of one id apart, by when they were made; the key of a loop is of one alone."""
    return task["created"] if loop_of(task) is None else None


def rows(here: Collection[str]) -> list[dict[str, Any]]:
    """Describe the tasks of kept pools for a table: running, queued, and those that have ended.

    Args:
        here: The ids of the pools whose tasks are known already.
    """
    looks = control.look_at(pool for pool in control.find_pools() if pool.is_kept)
    known = {look.pool.name for look in looks if look.pool.id in here}
    live = [
        {**task, "pool": look.pool.name}
        for look in looks
        if look.answer and look.pool.id not in here
        for task in [*look.answer["tasks"], *look.answer["ended"]]
        if task["kind"] == "task"
    ]
    ended = [task for task in waiting(looks) if task["pool"] not in known]
    return [_row(task) for task in [*live, *ended]]


def _row(task: Mapping[str, Any]) -> dict[str, Any]:
    begun, ended = task["started"], task.get("finished")
    seconds = None
    if begun is not None:
        until = datetime.fromisoformat(ended) if ended else datetime.now(UTC)
        seconds = round((until - datetime.fromisoformat(begun)).total_seconds(), 1)
    return {
        "name": task["name"],
        "state": str(task["state"]),
        "rank": task["rank"],
        "seconds": seconds,
        "progress": task["progress"],
        "metrics": task["last_metrics"],
        "kept pool": task["pool"],
    }


def _open_tasks(name: str) -> list[tuple[control.FoundPool, Mapping[str, Any]]]:
    """Find the queued and running tasks of a name in kept pools."""
    looks = control.look_at(pool for pool in control.find_pools() if pool.is_kept)
    return [
        (look.pool, task)
        for look in looks
        for task in (look.answer["tasks"] if look.answer else ())
        if task["kind"] == "task" and name in (task["name"], loop_of(task))
    ]


def loop_of(task: Mapping[str, Any]) -> str | None:
    """Return the name of the loop that a task is a part of, None for any other task."""
    name: str | None = (task.get("part") or {}).get("name")
    return name


def refuse_running(name: str) -> None:
    """Say where a task is that has not ended.

    Raises:
        MgpuError: If a kept pool has it.
    """
    for pool, task in _open_tasks(name):
        raise MgpuError(
            f"The task {name!r} is {task['state']} in the kept pool {pool.name!r}. "
            f"`%parpool --attach {pool.name}` brings it into this notebook, and `%tasks {name}` "
            "shows what it has printed."
        )


def diary(name: str) -> tuple[str, str] | None:
    """Return what a task has printed that is queued or runs in a kept pool, and a headline."""
    for pool, task in _open_tasks(name):
        headline = f"<Task {name!r} {task['state']} in the kept pool {pool.name!r}>"
        return control.read_diary(pool, task["id"]), headline
    return None
