"""A report as HTML: inline styles and SVG only, so that it survives conversion and distrust."""

import html
from collections.abc import Sequence

from jupyter_mgpu.output.html import BORDER, DIM, MONO, lines_to_html
from jupyter_mgpu.widgets.curves import MIN_POINTS, decimate
from jupyter_mgpu.widgets.static import words
from jupyter_mgpu.widgets.static.reports import Line, Report, columns

WIDTH, HEIGHT = 600, 120
MAX_POINTS = 300
DIARY_LINES = 20
# Middle tones: at least 3:1 on white and on JupyterLab's dark grey.
COLORS = ("#3d7fd9", "#c46a12", "#1a8f9c", "#b455c6", "#d9404a", "#8d6e63", "#d14a8b", "#2e9440")
DASHES = ("", "6 3", "2 2", "8 3 2 3")


def to_html(report: Report) -> str:
    """Draw a report."""
    parts = [f'<div style="font-weight:bold">{_escape(report.title)}</div>']
    parts += [f'<div style="color:{DIM}">{_escape(note)}</div>' for note in report.notes]
    if report.rows:
        parts.append(_table(report))
    parts += [_plot(name, lines) for name, lines in report.plots.items()]
    parts += [f"<div>{_escape(sentence)}</div>" for sentence in report.sentences]
    if report.diary:
        shown = lines_to_html(report.diary.splitlines()[-DIARY_LINES:])
        parts.append(f'<pre style="font-family:{MONO};white-space:pre-wrap">{shown}</pre>')
    if report.at is not None:
        at = f"State of {words.moment(report.at)}."
        parts.append(f'<div style="color:{DIM};font-size:85%">{at}</div>')
    return f'<div style="font-variant-numeric:tabular-nums">{"".join(parts)}</div>'


def _table(report: Report) -> str:
    shown = columns(report.rows)
    cell = f"padding:2px 8px;border-bottom:1px solid {BORDER};text-align:left"
    head = "".join(f'<th style="{cell}">{_escape(key)}</th>' for key in shown)
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{cell}">{_escape(row.get(key, ""))}</td>' for key in shown)
        + "</tr>"
        for row in report.rows
    )
    return (
        f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _plot(name: str, lines: Sequence[Line]) -> str:
    """Draw lines in one plot. What stands in words is outside of the SVG: viewers may drop it."""
    limit = min(MAX_POINTS, max(MIN_POINTS, 4 * MAX_POINTS // len(lines)))
    drawn = [decimate(list(zip(line.steps, line.values, strict=True)), limit) for line in lines]
    finite = [point for points in drawn for point in points if point[1] is not None]
    if not finite:
        return ""
    left, right = min(step for step, _ in finite), max(step for step, _ in finite)
    values = [value for _, value in finite if value is not None]
    low, high = min(values), max(values)
    label = f"{name.replace('_', ' ')}, {words.number(low)} to {words.number(high)}"
    paths = "".join(
        f'<path d="{_path(points, (left, right), (low, high))}" fill="none" '
        f'stroke="{COLORS[place % len(COLORS)]}" stroke-width="1.5" '
        f'stroke-dasharray="{DASHES[place // len(COLORS) % len(DASHES)]}" '
        'vector-effect="non-scaling-stroke"/>'
        for place, points in enumerate(drawn)
    )
    legend = " ".join(
        f'<span style="color:{COLORS[place % len(COLORS)]}">━ {_escape(line.name)}</span>'
        for place, line in enumerate(lines)
    )
    return (
        f'<div style="margin-top:6px">{_escape(label)}; steps {left:,} to {right:,}: {legend}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{_escape(label)}" style="display:block;width:100%;max-width:{WIDTH}px;'
        f'height:{HEIGHT}px;border:1px solid {BORDER}">{paths}</svg>'
    )


def _path(
    points: Sequence[tuple[float, float | None]],
    across: tuple[float, float],
    up: tuple[float, float],
) -> str:
    """Write a line as SVG's path, begun anew after each gap."""
    commands = []
    is_pen_down = False
    for step, value in points:
        if value is None:
            is_pen_down = False
            continue
        x = _scaled(step, across) * WIDTH
        y = HEIGHT - 2 - _scaled(value, up) * (HEIGHT - 4)
        commands.append(f"{'L' if is_pen_down else 'M'}{x:.1f} {y:.1f}")
        is_pen_down = True
    return "".join(commands)


def _scaled(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    return (value - low) / (high - low) if high > low else 0.5


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
