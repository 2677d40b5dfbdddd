"""A view without a script: for saved, converted and untrusted notebooks, and for terminals.

reports     a state of any kind becomes a title, rows, sentences and plots
html        these as HTML with inline styles; curves as inline SVG
text        these as plain text
words       numbers and times as people read them
packing     the state itself, as small as a file can have it
"""

from typing import Any

from jupyter_mgpu.widgets.static.html import to_html
from jupyter_mgpu.widgets.static.packing import packed
from jupyter_mgpu.widgets.static.reports import report_of
from jupyter_mgpu.widgets.static.text import to_text

VIEW_MIME = "application/vnd.jupyter-mgpu.view.v1+json"


def static_bundle(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as `text/html`, as `text/plain`, and for the renderer of our extension."""
    report = report_of(state)
    return {"text/html": to_html(report), "text/plain": to_text(report), VIEW_MIME: packed(state)}
