"""Where code below the views asks for one: they register here what they can open.

Without them (a script, a terminal, an extension that was not loaded) the text stands for itself.
"""

from collections.abc import Callable
from typing import Any, Protocol

from jupyter_mgpu.output.publisher import Publisher


class TrainingControls(Protocol):
    """What can be asked of a training while it runs; any thread may."""

    def request_stop(self, after: Any) -> None:
        """Ask it to end after its "step" or its "epoch"."""


class TrainingDisplay(Protocol):
    """What shows one training in its cell. Every method may be called from any thread."""

    def report(self, row: dict[str, Any]) -> None:
        """Take the values of a step, or of a validation."""

    def row(self, row: dict[str, Any]) -> None:
        """Take a row of the table, every so many steps."""

    def note(self, sentence: str) -> None:
        """Take a sentence that stands above."""

    def progress(self, step: int, total: int | None) -> None:
        """Take how far it is."""

    def finish(self, outcome: str) -> None:
        """Bring it to the state that is saved."""


OpenTraining = Callable[..., TrainingDisplay]
ShowFuture = Callable[[Any], None]

_open_training: OpenTraining | None = None
_show_future: ShowFuture | None = None


def register(open_training: OpenTraining, show_future: ShowFuture) -> None:
    """Let trainings and futures be shown by views from now on."""
    global _open_training, _show_future
    _open_training, _show_future = open_training, show_future


def open_training(place: Publisher, **about: Any) -> TrainingDisplay | None:
    """Show a training as a live plot; None where that is not possible.

    Args:
        place: The cell.
        **about: What it is; see `jupyter_mgpu.widgets.training_source`.
    """
    if _open_training is None or not place.can_update:
        return None
    return _open_training(place, **about)


def show_future(future: Any) -> None:
    """Show a task as a view, where that is possible."""
    if _show_future is not None:
        _show_future(future)
