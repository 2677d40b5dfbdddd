"""A training in its cell: a bar, and a table with a row every so many steps.

In a terminal the bar is one line that is written over, and the table comes at the end.
"""

import contextlib
import threading
import time
import uuid
from typing import Any

from jupyter_mgpu.output.progress_bar import ProgressBar
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.output.table import text_table

UPDATE_S = 0.2
MAX_ROWS = 200
COLUMNS = {
    "step": "iteration",
    "epoch": "epoch",
    "seconds": "time",
    "rate": "learning rate",
    "loss": "loss",
    "validation_loss": "validation loss",
}
_NO_VALUES = ("step", "epoch", "seconds", "rate")


class TrainingView:
    """What one training shows. Every method may be called from any thread.

    Args:
        place: The cell.
        name: What the training is called.
        environment: What it runs on, in words.
        is_quiet: Show nothing.
    """

    def __init__(
        self, place: Publisher, name: str, environment: str, *, is_quiet: bool = False
    ) -> None:
        self._is_quiet = is_quiet
        self._place = place
        self._bar = ProgressBar(place, name)
        self._environment = environment
        self._id = f"mgpu-{uuid.uuid4().hex}"
        self._notes: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._last: dict[str, str] = {}
        self._done: tuple[int, int | None] = (0, None)
        self._shown_s = 0.0
        self._is_shown = False
        self._lock = threading.Lock()

    def report(self, row: dict[str, Any]) -> None:
        """Pass over: the table has rows of its own."""

    def row(self, row: dict[str, Any]) -> None:
        """Take a row: a step, or a validation after the step of the last row."""
        with self._lock:
            self._last |= {name: _cell(name, row[name]) for name in row if name not in _NO_VALUES}
            if self._rows and self._rows[-1]["step"] == row["step"]:
                self._rows[-1].update(row)
            else:
                self._rows.append(dict(row))
            if self._place.can_update and time.monotonic() - self._shown_s >= UPDATE_S:
                self._show()  # elsewhere the table comes once, at the end

    def note(self, sentence: str) -> None:
        """Take a sentence that stands above the table."""
        with self._lock:
            self._notes.append(sentence)

    def progress(self, step: int, total: int | None) -> None:
        """Take how far it is."""
        with self._lock:
            self._done = (step, total)
            if not self._is_quiet:
                self._bar.update(step, total, status=self._last_values())

    def _last_values(self) -> str:
        """Return the newest values in words, where the table is not seen before its end."""
        if self._place.can_update:
            return ""
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self._last.items())

    def finish(self, outcome: str) -> None:
        """Bring it to the state that is saved.

        Args:
            outcome: Why the training ended, in words.
        """
        if self._is_quiet:
            return
        with self._lock:
            step, total = self._done
            self._bar.finish(step, total, 0, "" if step == total else "ended")
            if self._rows or self._notes:
                self._show(outcome)

    def _show(self, outcome: str = "") -> None:
        self._shown_s = time.monotonic()
        lines = [f"Training on {self._environment}.", *self._notes]
        text = (
            "\n".join([*lines, text_table(_cells(self._rows))]) if self._rows else "\n".join(lines)
        )
        if outcome:
            text += f"\nTraining ended: {outcome}."
        with contextlib.suppress(Exception):  # a front end that went away
            self._place.display({"text/plain": text}, display_id=self._id, update=self._is_shown)
        self._is_shown = True


def _cells(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = rows[:1] + rows[1 - MAX_ROWS :] if len(rows) > MAX_ROWS else rows
    extras = dict.fromkeys(key for row in rows for key in row if key not in COLUMNS)
    names = {**COLUMNS, **{key: key.replace("_", " ") for key in extras}}
    seen = {key for row in rows for key in row}
    return [
        {title: _cell(key, row.get(key)) for key, title in names.items() if key in seen}
        for row in rows
    ]


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key == "seconds":
        minutes, seconds = divmod(int(value), 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
    return str(value) if isinstance(value, int) else f"{value:.4g}"
