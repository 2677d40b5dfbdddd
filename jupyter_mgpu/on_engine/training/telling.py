"""Sends what the first rank of a training tells to the notebook."""

import time
from typing import Any

from jupyter_mgpu.on_engine import context

PROGRESS_S = 0.2


def send_row(row: dict[str, Any]) -> None:
    """Send a row of the table."""
    _send({"op": "row", "row": row})


def send_note(sentence: str) -> None:
    """Send a sentence that stands above it."""
    _send({"op": "note", "text": sentence})


def _send(header: dict[str, Any]) -> None:
    engine = context.require()
    if engine.task is not None:
        engine.emit({**header, "task": engine.task.id}, [])


class Progress:
    """Tells how far it is, a few times per second."""

    def __init__(self) -> None:
        self._told_s = 0.0

    def tell(self, step: int, total: int | None) -> None:
        """Take the steps that are done, and all of them if that is known."""
        now_s = time.monotonic()
        if now_s - self._told_s >= PROGRESS_S or step == total:
            self._told_s = now_s
            value = step / total if total else None
            _send({"op": "progress", "value": value, "step": step, "total": total})
