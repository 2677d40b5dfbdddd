"""One line per cell on the background tasks that it submitted."""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from jupyter_mgpu.output import publisher as publishers

EVERY_S = 0.5
NAMED = 4
"""So many running tasks are named in the line."""


class WatchedTask(Protocol):
    """What the line tells of a task."""

    name: str
    rank: int | None

    @property
    def last_metrics(self) -> dict[str, Any]:
        """The metrics reported last."""

    @property
    def state(self) -> Any:
        """Queued, running and so on."""


class StatusLine:
    """The line of one cell; it is updated until all its tasks have ended.

    Args:
        place: The cell.
    """

    def __init__(self, place: publishers.Publisher) -> None:
        self._place = place
        self._id = uuid.uuid4().hex
        self._open: list[WatchedTask] = []
        self._ended: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._shown = ""

    def add(self, task: WatchedTask) -> None:
        """Tell of one more task."""
        with self._lock:
            self._open.append(task)

    def update(self) -> bool:
        """Show how the tasks are; False when all have ended."""
        with self._lock:
            still = []
            for task in self._open:
                state = str(task.state)
                if state in ("queued", "running"):
                    still.append((state, task))
                else:
                    self._ended[state] += 1
            self._open = [task for _, task in still]
            text = self._text(still)
            if text != self._shown:
                self._place.display({"text/plain": text}, display_id=self._id, update=True)
                self._shown = text
            return bool(self._open)

    def start(self) -> None:
        """Show the line for the first time."""
        self._shown = self._text([("queued", task) for task in self._open])
        self._place.display({"text/plain": self._shown}, display_id=self._id)

    def _text(self, still: Sequence[tuple[str, WatchedTask]]) -> str:
        counts = Counter(state for state, _ in still) + self._ended
        parts = [f"{counts[s]} {s}" for s in _STATES if counts[s]]
        running = [task for state, task in still if state == "running"]
        named = [_describe(task) for task in running[:NAMED]]
        return "tasks: " + ", ".join(parts) + (" | " + " · ".join(named) if named else "")


_STATES = ("running", "queued", "finished", "failed", "cancelled")
_lines: dict[str, StatusLine] = {}
_guard = threading.Lock()
_thread: threading.Thread | None = None


def follow(task: WatchedTask) -> None:
    """Tell of a task in the line of the cell that runs now; does nothing outside a notebook."""
    global _thread
    place = publishers.capture()
    if not place.can_update:
        return
    key = place.cell_id
    with _guard:
        line = _lines.get(key)
        if line is None:
            line = _lines[key] = StatusLine(place)
            line.add(task)
            line.start()
        else:
            line.add(task)
        if _thread is None:
            _thread = threading.Thread(target=_run, name="mgpu-status-lines", daemon=True)
            _thread.start()


def _run() -> None:
    global _thread
    while True:
        time.sleep(EVERY_S)  # the pace of the line, not a wait for anything
        with _guard:
            for key, line in list(_lines.items()):
                if not line.update():
                    _lines.pop(key)
            if not _lines:
                _thread = None
                return


def _describe(task: WatchedTask) -> str:
    values = " ".join(f"{key}={value:.4g}" for key, value in task.last_metrics.items())
    return f"{task.name} on rank {task.rank}{' ' + values if values else ''}"
