"""Those who watch a training: the notebook, and TensorBoard."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_mgpu.on_engine.stop_wish import StopAfter


@dataclass(slots=True)
class Watcher:
    """How a training talks to those who watch it.

    Attributes:
        report: Takes step and metrics.
        stop_requested: Tells whether this rank was asked to stop after a step, or an "epoch".
        show: Takes a row of the table, on the first rank.
        progress: Takes the steps done, and all of them if that is known, on the first rank.
        note: Takes a sentence about how the options were read, on the first rank.
    """

    report: Callable[..., None] = lambda **_: None
    stop_requested: Callable[[StopAfter], bool] = lambda _: False
    show: Callable[[dict[str, Any]], None] = lambda _: None
    progress: Callable[[int, int | None], None] = lambda *_: None
    note: Callable[[str], None] = lambda _: None


class EventFiles:
    """Writes what is reported into TensorBoard's files.

    Args:
        folder: Where they go; without one, nothing is written.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self._writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))

    def report(self, step: int, **values: float) -> None:
        """Take the values of a step."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Let the files be whole."""
        if self._writer is not None:
            self._writer.close()


def demand_tensorboard() -> None:
    """Refuse a folder for TensorBoard where it is not installed.

    Raises:
        ModuleNotFoundError: It says what to install.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ModuleNotFoundError(
            "log_dir was given, but tensorboard is not installed. Run: "
            "pip install 'jupyter_mgpu[tensorboard]'",
            name="tensorboard",
        )
