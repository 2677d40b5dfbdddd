"""Shows the classification of a cell as a small table."""

from jupyter_mgpu.loop_cell.records import Classification, Variable

_HEADINGS = ("name", "class", "lines", "note")


def explain(loop: Classification) -> str:
    """Return what `%%parfor --explain` prints: names, classes, lines, and what is to be known."""
    rows = [_HEADINGS, *(_row(variable) for variable in loop.variables)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([f"%%parfor {loop.header.text}", *lines])


def _row(variable: Variable) -> tuple[str, str, str, str]:
    lines = ",".join(map(str, variable.lines))
    return variable.name, str(variable.kind), lines, variable.note
