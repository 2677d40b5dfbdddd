"""Streams what a background task prints into the cell that asked for it."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.output.publisher import Publisher


class ShownTask(Protocol):
    """What is shown of a task."""

    rank: int | None

    @property
    def diary(self) -> str:
        """What it has printed so far."""

    def done(self) -> bool:
        """Whether it has ended."""

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call a function at its end."""


class TaskDisplay:
    """One `future.show()`: what was printed so far, then each message as it comes.

    Args:
        task: What is shown.
        publisher: The cell that it is shown in.
        log_path: Where the complete text is.
    """

    def __init__(self, task: ShownTask, publisher: Publisher, log_path: str | None) -> None:
        self._task = task
        rank = task.rank if task.rank is not None else 0
        logs = {rank: log_path} if log_path else {}
        self._rank = rank
        self._output = CellOutput([rank], publisher, log_paths=logs)
        self._done = threading.Event()
        if task.diary:
            self.handle({"op": "output", "name": "stdout", "text": task.diary})

    def handle(self, message: dict[str, Any]) -> None:
        """Take a message of the task."""
        if message["op"] in ("output", "display"):
            self._output.handle(self._rank, message)

    def wait(self) -> None:
        """Show the task until it ends or the cell is stopped; a Stop leaves the task alone."""
        self._task.add_done_callback(lambda _: self._done.set())
        try:
            self._done.wait()
        finally:
            self._output.finish({})
