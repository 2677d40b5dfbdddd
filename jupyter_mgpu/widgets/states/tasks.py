"""The state of the tasks' view: what runs, waits and has ended."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.engines import TaskState
from jupyter_mgpu.widgets.curves import decimate, shortened
from jupyter_mgpu.widgets.states import State, parts

MAX_TASKS = 200
MAX_CURVE = 100
NUM_DETAILED = 40
"""So many tasks of a list have a curve and the end of their diary."""
DIARY_CHARS = 4000
SHORT_DIARY_CHARS = 500
MAX_METRICS = 8
_PLACES = ("step", "epoch")
_RANKING = {TaskState.RUNNING: 0, TaskState.QUEUED: 1}


@dataclass(slots=True)
class TaskFacts:
    """What is known of one task.

    Attributes:
        created: When it was submitted, in seconds since the epoch; likewise started, finished.
        metrics: What it has reported, oldest first.
        controls: What can be asked of it.
        place: How a Jupyter server finds it.
    """

    id: str
    name: str
    pool: str
    state: str
    rank: int | None = None
    created: float | None = None
    started: float | None = None
    finished: float | None = None
    progress: float | None = None
    metrics: Sequence[Mapping[str, Any]] = field(default_factory=list)
    diary: str = ""
    error: str | None = None
    controls: Sequence[str] = ()
    place: parts.Place | None = None


def tasks_state(
    tasks: Iterable[TaskFacts],
    *,
    final: bool = False,
    diary_chars: int = SHORT_DIARY_CHARS,
    num_more_queued: int = 0,
) -> State:
    """Describe tasks: running ones first, then queued ones, then the newest that ended.

    Args:
        tasks: In any order.
        final: Whether this is the last state.
        diary_chars: So much of each diary's end.
        num_more_queued: How many wait beside them.
    """
    ordered = sorted(tasks, key=_order)
    counts = Counter(task.state for task in ordered)
    counts["queued"] += num_more_queued
    return {
        **parts.frame("tasks", final=final),
        "counts": {str(state): counts[str(state)] for state in TaskState},
        "tasks": [
            _task(task, diary_chars if place < NUM_DETAILED else 0)
            for place, task in enumerate(ordered[:MAX_TASKS])
        ],
        "hidden": max(len(ordered) - MAX_TASKS, 0) + num_more_queued,
    }


def _order(task: TaskFacts) -> tuple[int, float]:
    place = _RANKING.get(TaskState(task.state), 2)
    if place == 2:
        return place, -(task.finished or 0.0)
    return place, (task.started if place == 0 else task.created) or 0.0


def _task(task: TaskFacts, diary_chars: int) -> dict[str, Any]:
    is_live = task.state in ("queued", "running")
    elapsed_s = parts.now() - task.started if task.started is not None else None
    return {
        "id": task.id,
        "name": task.name,
        "pool": task.pool,
        "state": task.state,
        "rank": task.rank,
        "created": task.created,
        "started": task.started,
        "finished": task.finished,
        "progress": task.progress,
        "eta_s": parts.eta_s(task.progress, elapsed_s) if task.state == "running" else None,
        "metrics": _last_metrics(task.metrics),
        "curve": curve_of(task.metrics) if diary_chars else None,
        "diary": task.diary[-diary_chars:] if diary_chars else "",
        "error": task.error,
        "controls": list(task.controls) if is_live else [],
        "place": task.place if is_live else None,
    }


def _last_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    last = metrics[-1] if metrics else {}
    numbers = [name for name, value in last.items() if isinstance(value, int | float)]
    values = [(name, last[name]) for name in numbers if name not in _PLACES]
    return {
        name: shortened(value) for name, value in values[:MAX_METRICS] if abs(value) < float("inf")
    }


def curve_of(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the course of the metric that says most: a loss, else the first one reported."""
    ends = [*metrics[:1], *metrics[-1:]]  # the last row may be that of a validation
    names = [name for row in ends for name in row if name not in _PLACES]
    if not names:
        return None
    name = min(names, key=lambda name: (name != "loss", "loss" not in name))
    # Of a long list only so many rows are looked at: this is done for each task, twice a second.
    rows = metrics[:: len(metrics) // (4 * MAX_CURVE) + 1]
    points = [
        (place, shortened(value) if abs(value) < float("inf") else None)
        for place, row in enumerate(rows)
        if isinstance(value := row.get(name), int | float)
    ]
    return {"name": name, "values": [value for _, value in decimate(points, MAX_CURVE)]}
