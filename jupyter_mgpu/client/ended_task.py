"""What is kept of a task that has ended, when its future and its result may be gone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu.engines import TaskState
from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.owner.journal import DIARY_CHARS, spread


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that has ended; the same names as those of its future.

    Attributes:
        metrics: Of many reports, some that are spread over all of them, and the last one.
        diary: The end of what it printed.
        error: The first line of what it raised, if it failed.
        part: Which part of which loop it is, if it is one.
    """

    id: str
    name: str
    state: TaskState
    rank: int | None
    created: datetime
    started: datetime | None
    finished: datetime
    progress: float | None
    metrics: Sequence[Mapping[str, Any]]
    last_metrics: Mapping[str, Any]
    diary: str
    error: str | None
    part: Mapping[str, Any] | None


def ended_task(future: TaskFuture) -> EndedTask:
    """Keep what is told of a task, without its result."""
    state = future.state
    return EndedTask(
        future.id,
        future.name,
        state,
        future.rank,
        future.created,
        future.started,
        future.finished or datetime.now(UTC),
        future.progress,
        spread(future.metrics),
        future.last_metrics,
        future.diary[-DIARY_CHARS:],
        first_line(future.exception()) if state is TaskState.FAILED else None,
        future.part,
    )


def told_task(record: Mapping[str, Any]) -> EndedTask:
    """Return the same of the record of a task that an earlier kernel has submitted."""
    begun = record["started"]
    failure = record["failure"]
    return EndedTask(
        record["id"],
        record["name"],
        TaskState(record["state"]),
        record["rank"],
        datetime.fromisoformat(record["created"]),
        datetime.fromisoformat(begun) if begun else None,
        datetime.fromisoformat(record["finished"]),
        record["progress"],
        spread(record["metrics"]),
        record["last_metrics"],
        record["diary"],
        f"{failure['ename']}: {failure['evalue']}" if failure else record["message"],
        record["part"],
    )


def first_line(error: BaseException | None) -> str | None:
    """Say in one line what was raised."""
    if error is None:
        return None
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
