"""Sentences for the user: what was chosen, lost, replaced."""

import sys


def say(sentence: str) -> None:
    """Print a sentence; from a background thread it lands in the cell that started the thread."""
    sys.stdout.write(sentence.rstrip() + "\n")
    sys.stdout.flush()
