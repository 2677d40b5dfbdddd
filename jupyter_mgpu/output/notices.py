"""Sentences for the user: what was chosen, sent, lost, replaced."""

import sys
from collections.abc import Sequence

from jupyter_mgpu.output import html
from jupyter_mgpu.output.publisher import Publisher


def say(sentence: str) -> None:
    """Print a sentence; from a background thread it lands in the cell that started the thread."""
    sys.stdout.write(sentence.rstrip() + "\n")
    sys.stdout.flush()


def show_dim(place: Publisher, lines: Sequence[str]) -> None:
    """Show lines that explain, in a way that does not compete with the cell's output."""
    if not lines:
        return
    text = "\n".join(lines)
    style = f"color:{html.DIM};font-size:85%;white-space:pre-wrap;padding-left:{html.INDENT}"
    markup = f'<div style="{style}">{html.escape(text)}</div>'
    place.display({"text/plain": text, "text/html": markup})
