"""Finished tasks on disk: what a task printed, measured, returned or raised outlives the kernel.

One append-only file per pool, in segments of bounded size. A record is a length-prefixed JSON
description followed by the packed result or exception; a torn last record is ignored.
"""

import contextlib
import json
import os
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jupyter_mgpu.output.diary import Diary
from jupyter_mgpu.owner import told_loops
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.owner.spool import SUFFIX, Spool
from jupyter_mgpu.wire import Frame, Header

SEGMENT_BYTES = 64 * 2**20
SEGMENTS_PER_POOL = 4
RESULT_BYTES = 16 * 2**20
"""A larger result is not kept, and its record says so; unless a `Spool` keeps it."""
METRICS_PER_TASK = 10_000
FLUSH_S = 0.05
PENDING_BYTES = 2**20
KEEP_DAYS = 14
RECENT_TASKS = 20
WHOLE_TASKS = 200
"""So many that ended are told to those who look from outside."""

MOST_WORDS = 500
DIARY_CHARS = 4000
MAX_METRICS = 400
_KEPT = "kept-"  # in the names of files: quick to find among many

_TOLD = [
    "id",
    "name",
    "state",
    "rank",
    "created",
    "started",
    "finished",
    "progress",
    "last_metrics",
    "result_bytes",
    "part",
]
_PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"MGT1"


@dataclass(slots=True)
class _Seen:
    """What was seen of a running task."""

    diary: Diary | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    progress: float | None = None
    frames: list[Frame] = field(default_factory=list)
    spooled: dict[str, Any] | None = None
    reply: Header = field(default_factory=dict)


def folder() -> Path:
    """Return the folder of the journals; only its user may read it."""
    from jupyter_core.paths import jupyter_data_dir

    path = Path(jupyter_data_dir()) / "jupyter_mgpu" / "tasks"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


class Journal:
    """The journal that one pool writes.

    Args:
        pool_name: Becomes part of the file names.
        call_later: Calls a function after some seconds, in the owner's loop.
        keeps_large: Whether results wait here for another kernel, also large ones.

    Attributes:
        recent: What is told of the tasks that ended last, newest first; a loop is one of them.
        loops: What is told of the ended parts of loops, by the loop's key.
        ended_whole: For a kernel that attaches later: the last records, oldest first, with the
            end of each diary and some of the metrics.
    """

    def __init__(
        self, pool_name: str, call_later: Callable[..., Any], *, keeps_large: bool = False
    ) -> None:
        self.ended_whole: deque[dict[str, Any]] = deque(maxlen=WHOLE_TASKS if keeps_large else 0)
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_TASKS)
        self.loops: dict[str, dict[str, Any]] = {}
        self._pool = pool_name
        self._call_later = call_later
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", pool_name)
        kind = _KEPT if keeps_large else ""
        self._stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}-{kind}{safe}"
        self._spool = Spool(folder(), self._stem) if keeps_large else None
        self._segments: list[Path] = []
        self._descriptor = -1
        self._size = 0
        self._pending: list[Frame] = []
        self._pending_size = 0
        self._trouble: str | None = None
        self._is_told = self._is_scheduled = self._is_pruned = False

    def observe(self, task: Task, header: Header) -> None:
        """Take note of what a running task prints and reports."""
        if header["op"] not in ("output", "report", "progress"):
            return
        seen = self._seen(task)
        if header["op"] == "output":
            seen.diary = seen.diary or Diary()
            seen.diary.write(header["text"], header.get("dropped", 0))
        elif header["op"] == "report" and len(seen.metrics) < METRICS_PER_TASK:
            seen.metrics.append({"step": header["step"], **header["metrics"]})
        elif header["op"] == "progress":
            seen.progress = header["value"]

    def result(self, task: Task, header: Header, frames: list[Frame]) -> None:
        """Keep a task's packed result or exception until it is recorded as ended."""
        if not task.header.get("recorded"):
            return
        seen = self._seen(task)
        seen.reply = header
        sizes = list(map(len, frames))
        if sum(sizes) <= RESULT_BYTES:
            # Its owner may change a result in place before it is written.
            seen.frames = [*frames[:1], *(bytes(frame) for frame in frames[1:])]
        elif self._spool is not None:
            file = self._spool.keep(task.id, frames)
            seen.spooled = {"file": file, "sizes": sizes} if file is not None else None

    def ended(self, task: Task, header: Header) -> str | None:
        """Write a task's record; cells are not recorded.

        Returns:
            Why it could not be written, None if it was.
        """
        if task.header.get("recorded"):
            record = self._record(task, header)
            self._remember(record)
            try:
                if not self._trouble:
                    self._write(task, record)
            except OSError as error:
                self._trouble = f"Ended tasks are not written to disk any more: {error}."
        if self._trouble and not self._is_told:
            self._is_told = True
            return self._trouble
        return None

    def _record(self, task: Task, header: Header) -> dict[str, Any]:
        seen = self._seen(task)
        sizes = [len(frame) for frame in seen.frames]
        return {
            **self.describe(task),
            "pool": self._pool,
            "state": header["state"],
            "reason": header.get("reason"),
            "message": header.get("message") or seen.reply.get("message"),
            "failure": seen.reply.get("failure"),
            "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "diary": str(seen.diary or ""),
            "metrics": seen.metrics,
            "frames": sizes,
            "spooled": seen.spooled,
            "is_kept": self._spool is not None,
            "result_bytes": sum(seen.spooled["sizes"] if seen.spooled else sizes),
            "has_result": bool(sizes or seen.spooled),
        }

    def _write(self, task: Task, record: dict[str, Any]) -> None:
        seen = self._seen(task)
        frames, seen.frames = seen.frames, []
        self._append(json.dumps(record, default=str).encode(), frames, sum(record["frames"]))

    def _remember(self, record: dict[str, Any]) -> None:
        short = {"diary": record["diary"][-DIARY_CHARS:], "metrics": spread(record["metrics"])}
        self.ended_whole.append({**record, **short})
        entry = told(record)
        if (key := told_loops.loop_of(entry)) is not None:
            entry = told_loops.as_loop(entry)
            earlier = self.loops.pop(key, None)
            if earlier is not None:
                with contextlib.suppress(ValueError):  # so many others have ended since
                    self.recent.remove(earlier)
                entry = told_loops.join(entry, earlier)
            self.loops[key] = entry
            if len(self.loops) > WHOLE_TASKS:
                del self.loops[next(iter(self.loops))]
        self.recent.appendleft(entry)

    def describe(self, task: Task) -> dict[str, Any]:
        """Return what a task's record starts with, also while it is queued or running."""
        seen = self._seen(task)
        return {
            "id": task.id,
            "name": task.name,
            "state": task.state,
            "rank": task.info.get("rank"),
            "created": task.info.get("created"),
            "started": task.info.get("started"),
            "progress": seen.progress,
            "last_metrics": seen.metrics[-1] if seen.metrics else {},
            "part": task.header.get("part"),
        }

    def describe_whole(self, task: Task) -> dict[str, Any]:
        """Describe a task that is queued or runs for a kernel that takes it over."""
        seen = self._seen(task)
        return {
            **self.describe(task),
            "diary": str(seen.diary or ""),
            "metrics": seen.metrics,
            "result_rank": task.header.get("result_rank"),
        }

    def diary(self, task: Task) -> str:
        """Return what a task has printed so far."""
        return str(self._seen(task).diary or "")

    def _seen(self, task: Task) -> _Seen:
        seen = task.info.get("seen")
        if seen is None:
            seen = task.info["seen"] = _Seen()
        return seen

    def _append(self, record: bytes, frames: list[Frame], size: int) -> None:
        if self._descriptor < 0 or self._size > SEGMENT_BYTES:
            self._next_segment()
        self._pending += [_PREFIX.pack(_MAGIC, len(record), size), record, *frames]
        self._pending_size += len(record) + size
        self._size += len(record) + size
        if self._pending_size > PENDING_BYTES:
            self.flush()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write what was recorded since the last time: one write for many short tasks."""
        self._is_scheduled = False
        parts, self._pending, self._pending_size = self._pending, [], 0
        if parts and self._descriptor >= 0:
            try:
                os.write(self._descriptor, b"".join(parts))
            except OSError as error:
                self._trouble = f"Ended tasks are not written to disk any more: {error}."

    def _next_segment(self) -> None:
        self.close()
        if not self._is_pruned:
            prune()
            self._is_pruned = True
        path = folder() / f"{self._stem}-{time.monotonic_ns()}.tasks"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL
        self._descriptor = os.open(path, flags, 0o600)
        self._size = 0
        self._segments.append(path)
        while len(self._segments) > SEGMENTS_PER_POOL:
            self._segments.pop(0).unlink(missing_ok=True)

    def close(self) -> None:
        """Write what is pending, and close the current segment."""
        self.flush()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def finish(self) -> None:
        """Have all on disk, large results as well."""
        self.close()
        if self._spool is not None:
            self._spool.close()


def spread(metrics: Sequence[Any]) -> list[Any]:
    """Choose some of many reports, over all of them, and the last one."""
    every = len(metrics) // MAX_METRICS + 1
    return [*metrics[:-1:every], *metrics[-1:]]


def told(record: dict[str, Any]) -> dict[str, Any]:
    """Return what those are told of an ended task who look from outside."""
    return {
        **{key: record.get(key) for key in _TOLD},
        "kind": "task",
        "error": first_line(record),
    }


def first_line(record: dict[str, Any]) -> str | None:
    """Say in one line why a task failed; None if it did not."""
    failure = record["failure"]
    text = f"{failure['ename']}: {failure['evalue']}" if failure else record["message"] or ""
    return str(text).partition("\n")[0][:MOST_WORDS] or None


def prune() -> None:
    """Remove segments that are older than KEEP_DAYS."""
    oldest_ns = time.time_ns() - KEEP_DAYS * 86400 * 10**9
    for written_ns, path in [*_segments(), *_segments(f"*{SUFFIX}")]:
        if written_ns < oldest_ns:
            path.unlink(missing_ok=True)


def _segments(pattern: str = "*.tasks") -> list[tuple[int, Path]]:
    """List all files, oldest first, with their times; other kernels may remove theirs meanwhile."""
    found = []
    for path in folder().glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime_ns, path))
    return sorted(found)


def read_kept(most: int) -> list[dict[str, Any]]:
    """Return what is told of the last tasks of kept pools, newest first; a loop is one of them."""
    found = [
        {**told(record), "pool": record["pool"]}
        for record, _, _ in read_all(f"*-{_KEPT}*.tasks")
        if record.get("is_kept")
    ]
    return told_loops.fold(reversed(found))[:most]


def read_all(pattern: str = "*.tasks") -> Iterator[tuple[dict[str, Any], Path, int]]:
    """Yield every record, oldest first, with the file and place of its frames."""
    for _, path in _segments(pattern):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while len(prefix := file.read(_PREFIX.size)) == _PREFIX.size:
                magic, record_size, frames_size = _PREFIX.unpack(prefix)
                place = file.tell() + record_size
                if magic != _MAGIC or place + frames_size > size:
                    break  # torn by a crash
                record = json.loads(file.read(record_size))
                yield record, path, place
                file.seek(place + frames_size)


def read_frames(path: Path, place: int, sizes: list[int]) -> list[bytes]:
    """Read the frames of one record."""
    with path.open("rb") as file:
        file.seek(place)
        return [file.read(size) for size in sizes]
