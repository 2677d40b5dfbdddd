"""A report as plain text."""

from jupyter_mgpu.output.html import strip_escapes
from jupyter_mgpu.output.table import text_table
from jupyter_mgpu.widgets.static.reports import Report, columns

DIARY_LINES = 10


def to_text(report: Report) -> str:
    """Write a report: its title, a table, one sentence per curve."""
    lines = [report.title, *report.notes]
    shown = columns(report.rows)
    if shown:
        lines.append(text_table([{key: row.get(key, "") for key in shown} for row in report.rows]))
    lines += report.sentences
    if report.diary:
        lines += ["printed:", *map(strip_escapes, report.diary.splitlines()[-DIARY_LINES:])]
    return "\n".join(lines)
