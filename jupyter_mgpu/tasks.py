"""The tasks of this notebook, and those of earlier ones that are on disk."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_mgpu import kept_loops, kept_tasks, packing
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.futures import CancelledError, TaskFuture
from jupyter_mgpu.output import failures, traceback_text
from jupyter_mgpu.output.table import text_table
from jupyter_mgpu.owner import journal, spool
from jupyter_mgpu.pools import open_pools

_Entry = tuple[dict[str, Any], Path, int]
"""A record, and where it stands."""


@dataclass(frozen=True, slots=True, repr=False)
class TaskRecord:
    """A task that has ended, read from disk.

    Attributes:
        diary: All that it printed, up to a bound.
        metrics: One dict per `report`.
        part: Which part of which loop it is, if it is one.
    """

    name: str
    state: str
    pool: str
    rank: int | None
    created: str | None
    started: str | None
    finished: str
    diary: str
    metrics: list[dict[str, Any]]
    message: str | None
    failure: dict[str, Any] | None
    has_result: bool
    part: Mapping[str, Any] | None
    _place: tuple[Path, int, list[int]]
    _is_spooled: bool

    def result(self, timeout: float | None = None) -> Any:  # noqa: ARG002 - as a future's
        """Return the task's result.

        Args:
            timeout: For calls that also fit a future; what is on disk is not waited for.

        Raises:
            CancelledError: If it was cancelled.
            MgpuError: If it did not finish, or its result was too large to be kept.
            BaseException: What the task raised.
        """
        if self.state == "cancelled":
            raise CancelledError(f"The task {self.name!r} was cancelled.")
        if self.failure is not None:
            raise failures.rebuild(self.failure, self._frames(), self.rank or 0, "")
        if self.state != "finished":
            raise MgpuError(self.message or f"The task {self.name!r} did not finish.")
        if not self.has_result:
            raise MgpuError(
                f"The result of {self.name!r} was larger than "
                f"{journal.RESULT_BYTES / 2**20:.0f} MiB and was not kept."
            )
        if self._is_spooled:
            spool.wait_for(self._place[0])
        return packing.unpack(self._frames())

    def _frames(self) -> list[bytes]:
        return journal.read_frames(*self._place)

    @property
    def error_text(self) -> str:
        """Why it failed; empty if it did not."""
        if self.failure is None:
            return self.message or ""
        traceback_text.fill_lines(self.failure)
        return "\n".join(traceback_text.render(self.failure))

    def __repr__(self) -> str:
        where = f" on rank {self.rank}" if self.rank is not None else ""
        last = self.metrics[-1] if self.metrics else {}
        values = ", ".join(f"{key}={value:.4g}" for key, value in last.items())
        when = self.finished[:19].replace("T", " ")
        return (
            f"<TaskRecord {self.name!r} {self.state}{where}, {when} UTC{values and ': '}{values}>"
        )


class TaskTable(Sequence[dict[str, Any]]):
    """Tasks as rows, with a text table as its repr."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        return self._rows[place]

    def __repr__(self) -> str:
        if not self._rows:
            return "No tasks. Start one with parfeval(fn, ...)."
        return text_table(self._rows)


def list_records() -> list[TaskRecord]:
    """Return every task on disk, oldest first."""
    return [_record(*found) for found in _read_all()]


def load(name: str) -> TaskRecord | TaskFuture:
    """Return the newest task of a name, also one of a kernel that is gone.

    Returns:
        Its future while it waits or runs in a pool of this kernel, else its record; both have
        `result()`, `state`, `diary` and `metrics`. A loop of a kept pool is a future in any case.

    Raises:
        MgpuError: If there is no task of that name.
    """
    return _open_task(name) or _kept(name)


def _open_task(name: str) -> TaskFuture | None:
    futures = [future for pool in open_pools() for future in pool.tasks() if future.name == name]
    return futures[-1] if futures else None


def _kept(name: str) -> kept_loops.KeptLoop | TaskRecord:
    """Return the newest of a name that outlives kernels: a loop of a kept pool, or a record."""
    futures = [
        (future, pool)
        for pool in open_pools()
        for future in pool.tasks()
        if future.part is not None and future.part["name"] == name
    ]
    # After these: a part that ends just now is in both then.
    named, newest = _read_named(name)
    parts = [entry for entry in named if kept_tasks.loop_of(entry[0]) == name]
    if not futures and (parts or not named):
        kept_tasks.refuse_running(name)
    if futures or (parts and parts[-1] is named[-1]):
        key = (futures[-1][0].part or {})["loop"] if futures else parts[-1][0]["part"]["loop"]
        own: list[kept_loops.Part] = [future for future, _ in futures]
        own += [_record(*entry) for entry in parts]
        own = [part for part in own if part.part is not None and part.part["loop"] == key]
        return kept_loops.bring_back(own, futures[-1][1] if futures else None)
    if not named:
        listed = ", ".join(newest) or "none"
        raise MgpuError(f"No task {name!r} is on disk. The newest names are: {listed}.")
    return _record(*named[-1])


def _read_named(name: str) -> tuple[list[_Entry], list[str]]:
    """Find on disk the tasks of a name, with parts of loops of it, and the newest names."""
    named: list[_Entry] = []
    known: dict[str, None] = {}
    for entry in _read_all():
        known[entry[0]["name"]] = None
        if name in (entry[0]["name"], kept_tasks.loop_of(entry[0])):
            named.append(entry)
    return named, list(known)[-10:]


def table() -> TaskTable:
    """Return the tasks of this notebook's pools: running, queued, and the last that ended.

    Those of kept pools that are not attached here follow, also those that wait on disk.
    """
    here = [row for pool in open_pools() for row in pool.task_rows()]
    elsewhere = kept_tasks.rows({pool.owner.record_path.stem for pool in open_pools()})
    if not elsewhere:
        return TaskTable(here)
    return TaskTable([{**row, "kept pool": None} for row in here] + elsewhere)


def show(name: str) -> Any:
    """Return what is known of one task: its future while it is here, else its record.

    Raises:
        MgpuError: If there is no task of that name.
    """
    future = _open_task(name)
    if future is not None:
        return TaskReport(name, future.diary, repr(future))
    outside = kept_tasks.diary(name)
    if outside is not None:
        return TaskReport(name, *outside)
    kept = _kept(name)
    error = kept.error_text if isinstance(kept, TaskRecord) else ""
    return TaskReport(name, kept.diary, repr(kept), error)


class TaskReport:
    """A task's whole diary, and why it failed, as `%tasks NAME` shows it."""

    def __init__(self, name: str, diary: str, headline: str, error: str = "") -> None:
        self.name = name
        self.diary = diary
        self.error = error
        self._headline = headline

    def __repr__(self) -> str:
        printed = self.diary.rstrip("\n") or "(it has printed nothing)"
        return "\n".join(filter(None, (self._headline, printed, self.error)))


def _read_all() -> Iterator[_Entry]:
    """Yield what is on disk, with the tasks that have just ended."""
    for pool in open_pools():
        pool.owner.flush_journal()
    return journal.read_all()


def _record(record: dict[str, Any], path: Path, place: int) -> TaskRecord:
    frames = record["frames"]
    spooled = record.get("spooled")
    if spooled is not None:
        path, place, frames = journal.folder() / spooled["file"], 0, spooled["sizes"]
    return TaskRecord(
        name=record["name"],
        state=record["state"],
        pool=record["pool"],
        rank=record["rank"],
        created=record["created"],
        started=record["started"],
        finished=record["finished"],
        diary=record["diary"],
        metrics=record["metrics"],
        message=record["message"],
        failure=record["failure"],
        has_result=record["has_result"],
        part=record.get("part"),
        _place=(path, place, frames),
        _is_spooled=spooled is not None,
    )


def __getattr__(name: str) -> Any:
    if name == "list":  # `tasks.list()` is how it reads; the builtin stays usable in here
        return list_records
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
