"""The progress of a loop: a bar that is replaced in place, whose last state is saved."""

import contextlib
import time
import uuid

from jupyter_mgpu.output import html
from jupyter_mgpu.output.publisher import Bundle, Publisher
from jupyter_mgpu.output.table import format_duration

QUIET_S = 0.5
"""A loop that ends within this time shows nothing."""
UPDATE_S = 0.2
LINE_S = 10.0
"""So often a line is printed where nothing can be replaced."""
_FILL = "var(--jp-brand-color1, #3d7fd9)"


class ProgressBar:
    """One loop's bar. One thread uses it.

    Args:
        place: The cell.
        name: What the loop is called.
    """

    def __init__(self, place: Publisher, name: str) -> None:
        self._place = place
        self._name = name
        self._id = f"mgpu-{uuid.uuid4().hex}"
        self._begun_s = time.monotonic()
        can_replace = place.can_update or place.can_rewrite
        self._pause_s = UPDATE_S if can_replace else LINE_S
        self._due_s = self._begun_s + (QUIET_S if can_replace else LINE_S)
        self._is_shown = False

    def update(
        self, num_done: int, total: int | None, num_failed: int = 0, status: str = ""
    ) -> None:
        """Show how far the loop is, if it is time for that."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + self._pause_s
            elapsed_s = now_s - self._begun_s
            text = _live_text(num_done, total, num_failed, elapsed_s)
            self._show(num_done, total, f"{text}, {status}" if status else text)

    def finish(self, num_done: int, total: int | None, num_failed: int, outcome: str = "") -> None:
        """Show the last state, unless the loop was short.

        Args:
            num_done: How many items have ended.
            total: How many there were, if that is known.
            num_failed: How many of them failed.
            outcome: How the loop ended, if not well, such as `stopped`.
        """
        elapsed_s = time.monotonic() - self._begun_s
        if self._is_shown or elapsed_s >= QUIET_S:
            text = _final_text(num_done, total, num_failed, elapsed_s, outcome)
            self._show(num_done, total, text, outcome=outcome or ("failed" if num_failed else ""))
            if self._place.can_rewrite:
                self._place.stream("stdout", "")  # the line ends

    def _show(self, num_done: int, total: int | None, text: str, outcome: str = "") -> None:
        share = None if not total else min(num_done / total, 1.0)
        bundle = _bundle(self._name, share, text, outcome)
        # A front end that went away is no reason to lose the loop.
        with contextlib.suppress(Exception):
            self._place.display(bundle, display_id=self._id, update=self._is_shown)
        self._is_shown = True


def _bundle(name: str, share: float | None, text: str, outcome: str) -> Bundle:
    percent = "" if share is None else f"{share:.0%} "
    return {
        "text/plain": f"{name}: {percent}{text}",
        "text/html": html.bar(name, share, text, html.ERROR if outcome else _FILL),
    }


def _live_text(num_done: int, total: int | None, num_failed: int, elapsed_s: float) -> str:
    parts = [_count(num_done, total), format_duration(elapsed_s)]
    if total and num_done:
        parts[-1] += f" + {format_duration((total - num_done) * elapsed_s / num_done)} left"
    return ", ".join([*parts, *_extras(num_done, num_failed, elapsed_s)])


def _final_text(
    num_done: int, total: int | None, num_failed: int, elapsed_s: float, outcome: str
) -> str:
    count = _count(num_done, total) if outcome else f"{num_done:,} items"
    parts = [f"{outcome} after {count}" if outcome else count, format_duration(elapsed_s)]
    return ", ".join([*parts, *_extras(num_done, num_failed, elapsed_s)])


def _count(num_done: int, total: int | None) -> str:
    return f"{num_done:,} items" if total is None else f"{num_done:,} of {total:,} items"


def _extras(num_done: int, num_failed: int, elapsed_s: float) -> list[str]:
    extras = [f"{_rate(num_done / elapsed_s)}"] if num_done and elapsed_s else []
    return [*extras, f"{num_failed:,} failed"] if num_failed else extras


def _rate(per_s: float) -> str:
    if per_s >= 1:
        return f"{per_s:,.0f}/s" if per_s >= 10 else f"{per_s:.1f}/s"
    return f"{format_duration(1 / per_s)} each"
