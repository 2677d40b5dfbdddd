"""Rows as a plain text table."""

from collections.abc import Mapping, Sequence
from typing import Any


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


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_text(item)}" for key, item in value.items())
    return str(value)
