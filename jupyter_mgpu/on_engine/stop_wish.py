"""The notebook's wish that a task ends by itself: after its step, or after its epoch."""

import threading
from typing import Literal, get_args

StopAfter = Literal["step", "epoch"]


class StopWish:
    """Whether, and when, a task was asked to end. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._is_asked = {after: threading.Event() for after in get_args(StopAfter)}

    def ask(self, after: StopAfter = "step") -> None:
        """Ask it to end after its step or its epoch; the sooner one counts."""
        self._is_asked[after].set()

    def holds(self, after: StopAfter = "step") -> bool:
        """Tell whether it should end now that a step, or an epoch, has ended."""
        now = self._is_asked["step"].is_set()
        return now or (after == "epoch" and self._is_asked["epoch"].is_set())


def check_after(after: str) -> None:
    """Refuse what is neither a step nor an epoch.

    Raises:
        ValueError: It says what was asked for.
    """
    if after not in get_args(StopAfter):
        raise ValueError(f"after is {after!r}, but it may be: 'step', 'epoch'.")
