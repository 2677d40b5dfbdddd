"""Rows as a plain text table, sizes as text."""

from collections.abc import Mapping, Sequence
from typing import Any

_THOUSAND = 1000


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lay out rows below their keys; None reads as an empty cell."""
    keys = list(rows[0])
    cells = [[_text(row.get(key)) for key in keys] for row in rows]
    widths = [max(map(len, column)) for column in zip(keys, *cells, strict=True)]
    lines = [keys, ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def format_bytes(num_bytes: int) -> str:
    """Write a size: 24 B, 1.2 MB."""
    if num_bytes < _THOUSAND:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= _THOUSAND
        if size < _THOUSAND:
            return f"{size:.1f} {unit}" if size < 10 else f"{size:.0f} {unit}"
    return f"{size / _THOUSAND:.1f} TB"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_text(item)}" for key, item in value.items())
    return str(value)


def format_duration(seconds: float) -> str:
    """Write a time span: 4.2 s, 3:05, 1:02:03."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"
