"""What several states share: the frame, readings with their reasons, times."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

Place = dict[str, str]
"""How a Jupyter server finds what a view shows: the `pool` by its id, and there its `task`."""
VERSION = 1
MAX_SERIES = 120


def frame(kind: str, *, final: bool = False, notice: str | None = None) -> dict[str, Any]:
    """Begin a state.

    Args:
        kind: Which view draws it.
        final: Whether it is the last one.
        notice: A sentence that stands above the view.
    """
    return {"version": VERSION, "kind": kind, "at": now(), "final": final, "notice": notice}


def now() -> float:
    """Return the time in seconds since the epoch, as all states have it."""
    return round(time.time_ns() / 1e9, 1)


def seconds_of(moment: datetime | str | None) -> float | None:
    """Return a moment in seconds since the epoch.

    Args:
        moment: A date, or its ISO form; UTC where it names no zone.
    """
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if moment is None:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp(), 1)


def reading(value: float | None, reason: str | None = None) -> dict[str, Any]:
    """Return a value, or why there is none."""
    return {"value": value, "reason": None if value is not None else reason or "not reported"}


def memory(
    used: int | None, total: int | None, reserved: int | None = None, reason: str | None = None
) -> dict[str, Any]:
    """Return a memory in bytes, or why it is not known."""
    unknown = (reason or "not reported") if used is None else None
    return {"used": used, "total": total, "reserved": reserved, "reason": unknown}


def series(step_s: float, values: Iterable[float | None]) -> dict[str, Any]:
    """Return a history, the newest value last."""
    kept = list(values)[-MAX_SERIES:]
    return {"step_s": step_s, "values": kept}


def eta_s(share: float | None, elapsed_s: float | None) -> float | None:
    """Estimate how long the rest takes, if it goes on as before.

    Args:
        share: How much is done, 0 to 1.
        elapsed_s: How long that took.
    """
    if not share or elapsed_s is None or not 0 < share <= 1:
        return None
    return round(elapsed_s * (1 - share) / share, 1)


_CLOCKS = ("at", "elapsed_s", "eta_s")


def without_clocks(state: dict[str, Any]) -> dict[str, Any]:
    """Return what makes two states differ: all but what only the passing of time changes."""
    return {name: value for name, value in state.items() if name not in _CLOCKS}
