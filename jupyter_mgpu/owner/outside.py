"""What a pool's owner tells and does for those outside its kernel: the server, the command line."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jupyter_mgpu.errors import OwnerError
from jupyter_mgpu.owner import told_loops
from jupyter_mgpu.owner.journal import Journal
from jupyter_mgpu.owner.queue import Task

MOST_TASKS = 200
"""So many are described at once: a queue may hold many thousands."""
KINDS = {"cell": "cell", "chunk": "loop"}


def describe_tasks(tasks: Iterable[Task], journal: Journal) -> dict[str, Any]:
    """Describe what runs, waits and has ended lately; chunks or parts of a loop are one entry.

    Returns:
        `tasks`, running ones first, `ended`, newest first, and `hidden`, how many wait that are
        not listed.
    """
    loops: dict[str, list[Task]] = {}
    running: list[Task] = []
    queued: list[Task] = []
    for task in tasks:
        if (loop := _loop_of(task)) is not None:
            loops.setdefault(loop, []).append(task)
        else:
            (running if task.state == "running" else queued).append(task)
    listed = [*running, *queued[: max(0, MOST_TASKS - len(running))]]
    return {
        "tasks": [
            *(_describe_loop(key, chunks, journal) for key, chunks in loops.items()),
            *(_describe(task, journal) for task in listed),
        ],
        "ended": [task for task in journal.recent if task["id"] not in loops],
        "hidden": len(running) + len(queued) - len(listed),
    }


def _describe(task: Task, journal: Journal) -> dict[str, Any]:
    return {**journal.describe(task), "kind": kind_of(task), "priority": task.priority}


def _describe_loop(key: str, chunks: list[Task], journal: Journal) -> dict[str, Any]:
    first = min(chunks, key=lambda chunk: (chunk.state != "running", chunk.since_s))
    told = _describe(first, journal)
    if told["part"] is None:
        return {**told, "id": key, "rank": None, "progress": None}
    told = told_loops.as_loop(told)
    ended = journal.loops.get(key)
    return told if ended is None else told_loops.join(told, ended)


def _loop_of(task: Task) -> str | None:
    """Return the key of the loop that a task is a chunk or a part of."""
    return task.header.get("loop") or told_loops.loop_of(task.header)


def kind_of(task: Task) -> str:
    """Say what a task is to people: a task, a cell, a loop."""
    return KINDS.get(task.header.get("kind", ""), "task")


def ids_of(tasks: dict[str, Task], task_id: str) -> list[str]:
    """Return the id of a task, or those of the chunks or parts of a loop.

    Raises:
        OwnerError: If there is none that is queued or runs.
    """
    if task_id in tasks:
        return [task_id]
    chunks = [task.id for task in list(tasks.values()) if _loop_of(task) == task_id]
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
    """Make an operation on a task one that refuses loops of a kernel, and unknown ids."""

    def operation(task: str, **options: Any) -> None:
        ids = ids_of(tasks, task)
        if any(tasks[each].header.get("loop") is not None for each in ids):
            raise OwnerError("A loop cannot be asked to stop from outside. Cancel it.")
        for each in ids:
            act(each, **options)

    return operation


def diary_of(tasks: dict[str, Task], journal: Journal, task_id: str) -> str:
    """Return what a task has printed so far, or all parts of a loop, in its order."""
    found = [
        (_place(tasks[each].header), journal.diary(tasks[each])) for each in ids_of(tasks, task_id)
    ]
    found += [
        (_place(record), record["diary"])
        for record in journal.ended_whole
        if told_loops.loop_of(record) == task_id
    ]
    return "".join(text for _, text in sorted(found))


def _place(told: Mapping[str, Any]) -> int:
    first: int = (told.get("part") or {}).get("first", 0)
    return first
