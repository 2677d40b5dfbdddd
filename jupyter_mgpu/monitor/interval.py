"""How often samples are taken: the limits, and what is said outside of them."""

import math
from typing import Any

from jupyter_mgpu.errors import IntervalError

SHORTEST_S, LONGEST_S, DEFAULT_S = 0.5, 60.0, 1.0
"""The driver itself averages over a sixth of a second to a second: less would repeat values."""


def check_interval(seconds: float) -> float:
    """Return the interval.

    Raises:
        IntervalError: If it is no number of seconds from 0.5 to 60.
    """
    allowed, note = clamp_interval(seconds)
    if note is not None:
        raise IntervalError(note)
    return allowed


def clamp_interval(seconds: float) -> tuple[float, str | None]:
    """Return the nearest interval that is allowed, and the sentence that says so if it differs.

    Raises:
        IntervalError: If it is no number at all.
    """
    if not _is_number(seconds):
        raise IntervalError(f"{seconds!r} is no interval. {_LIMITS}")
    allowed = float(min(LONGEST_S, max(SHORTEST_S, seconds)))
    if allowed == seconds:
        return allowed, None
    return allowed, f"An interval of {seconds:g} s is not possible. {_LIMITS}"


def _is_number(seconds: Any) -> bool:
    """Tell whether it can be compared with numbers; what a browser sends may be anything."""
    is_real = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return is_real and not math.isnan(seconds)


_LIMITS = f"Use {SHORTEST_S:g} to {LONGEST_S:g} seconds."
