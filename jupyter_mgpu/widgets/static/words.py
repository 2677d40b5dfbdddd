"""Numbers, sizes and times as people read them; what is unknown says so."""

from datetime import datetime
from typing import Any

from jupyter_mgpu.output.table import format_duration

UNKNOWN = "n/a"
_GIB = 2**30


def number(value: float | None) -> str:
    """Write a value of a curve."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def count(done: int | None, total: int | None) -> str:
    """Write how many of how many."""
    if done is None:
        return UNKNOWN if total is None else f"0 of {total:,}"
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"


def percent(value: float | None) -> str:
    """Write a share that is given in percent."""
    return UNKNOWN if value is None else f"{value:.0f} %"


def progress(share: float | None) -> str:
    """Write how much is done, as a bar and in percent."""
    if share is None:
        return ""
    num_full = min(int(10 * share), 10)
    return f"[{'#' * num_full}{'.' * (10 - num_full)}] {share:.0%}".replace("%", " %")


def reading(found: dict[str, Any], unit: str) -> str:
    """Write a reading with its unit, or why there is none."""
    if found["value"] is None:
        return f"{UNKNOWN} ({found['reason']})" if found.get("reason") else UNKNOWN
    return f"{found['value']:.0f} {unit}"


def memory(found: dict[str, Any]) -> str:
    """Write a memory in GiB: what is used, and of how much."""
    if found["used"] is None:
        return f"{UNKNOWN} ({found['reason']})" if found.get("reason") else UNKNOWN
    used = f"{found['used'] / _GIB:.1f}"
    return f"{used} GiB" if not found["total"] else f"{used} of {found['total'] / _GIB:.1f} GiB"


def duration(seconds: float | None) -> str:
    """Write a time span."""
    return UNKNOWN if seconds is None else format_duration(seconds)


def moment(epoch_s: float | None) -> str:
    """Write a moment in this machine's time."""
    if epoch_s is None:
        return UNKNOWN
    return datetime.fromtimestamp(epoch_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def values(metrics: dict[str, float]) -> str:
    """Write metrics by name."""
    return ", ".join(f"{name} {number(value)}" for name, value in metrics.items())
