"""The kernel's lines to the engines of its open pools."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jupyter_mgpu.packing import Place
from jupyter_mgpu.wire import Frame, Header


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """What leads to the engines of one pool.

    Attributes:
        answer: Answers a request: takes the engine's name, a header and frames.
        post: Sends a header to the main thread of every engine.
        place: Puts large frames into shared memory.
    """

    answer: Callable[[str, Header, Sequence[Frame]], None]
    post: Callable[[Header], None]
    place: Place


_lines: list[Line] = []


def attach(line: Line) -> None:
    """Open a line, once its engines are there."""
    _lines.append(line)


def remove(line: Line) -> None:
    """Close a line; harmless if it was never open."""
    if line in _lines:
        _lines.remove(line)


def open_lines() -> list[Line]:
    """Return the open lines, the latest last."""
    return list(_lines)


def place() -> Place | None:
    """Return what puts frames where the engines of all pools can open them; None without a pool."""
    lines = open_lines()
    return lines[-1].place if lines else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lines.clear)  # they belong to the parent
