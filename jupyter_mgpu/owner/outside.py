"""What a pool's owner tells and does for those outside its kernel: the server, the command line."""

from collections.abc import Callable, Iterable
from typing import Any

from jupyter_mgpu.errors import OwnerError
from jupyter_mgpu.owner.journal import Journal
from jupyter_mgpu.owner.queue import Task

MOST_TASKS = 200
"""So many are described at once: a queue may hold many thousands."""
KINDS = {"cell": "cell", "chunk": "loop"}


def describe_tasks(tasks: Iterable[Task], journal: Journal) -> dict[str, Any]:
    """Describe what runs, waits and has ended lately; the chunks of a loop are one entry.

    Returns:
        `tasks`, running ones first, `ended`, newest first, and `hidden`, how many wait that are
        not listed.
    """
    loops: dict[str, list[Task]] = {}
    running: list[Task] = []
    queued: list[Task] = []
    for task in tasks:
        if (loop := task.header.get("loop")) is not None:
            loops.setdefault(loop, []).append(task)
        else:
            (running if task.state == "running" else queued).append(task)
    listed = [*running, *queued[: max(0, MOST_TASKS - len(running))]]
    return {
        "tasks": [
            *(_describe_loop(key, chunks, journal) for key, chunks in loops.items()),
            *(_describe(task, journal) for task in listed),
        ],
        "ended": list(journal.recent),
        "hidden": len(running) + len(queued) - len(listed),
    }


def _describe(task: Task, journal: Journal) -> dict[str, Any]:
    return {**journal.describe(task), "kind": kind_of(task), "priority": task.priority}


def _describe_loop(key: str, chunks: list[Task], journal: Journal) -> dict[str, Any]:
    first = min(chunks, key=lambda chunk: chunk.since_s)
    is_running = any(chunk.state == "running" for chunk in chunks)
    return {
        **_describe(first, journal),
        "id": key,
        "state": "running" if is_running else "queued",
        "rank": None,
        "progress": None,
    }


def kind_of(task: Task) -> str:
    """Say what a task is to people: a task, a cell, a loop."""
    return KINDS.get(task.header.get("kind", ""), "task")


def ids_of(tasks: dict[str, Task], task_id: str) -> list[str]:
    """Return the id of a task, or those of the chunks of a loop.

    Raises:
        OwnerError: If there is none that is queued or runs.
    """
    if task_id in tasks:
        return [task_id]
    chunks = [task.id for task in list(tasks.values()) if task.header.get("loop") == task_id]
    if not chunks:
        raise OwnerError(f"No task {task_id!r} is queued or running; it may have ended.")
    return chunks


def on_each(tasks: dict[str, Task], act: Callable[..., Any]) -> Callable[..., None]:
    """Make an operation on a task one on each chunk of a loop, that refuses unknown ids."""

    def operation(task: str, **options: Any) -> None:
        for each in ids_of(tasks, task):
            act(each, **options)

    return operation


def refuse_loop(tasks: dict[str, Task], act: Callable[..., Any]) -> Callable[..., None]:
    """Make an operation on a task one that refuses loops and unknown ids."""

    def operation(task: str, **options: Any) -> None:
        if ids_of(tasks, task) != [task]:
            raise OwnerError("A loop cannot be asked to stop from outside. Cancel it.")
        act(task, **options)

    return operation
