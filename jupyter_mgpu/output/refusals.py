"""Draws what this package refuses, and a Stop while it waits, without the lines in here.

An error that nobody meant keeps its whole traceback: its lines in here are what a report needs.
"""

import linecache
import traceback
from concurrent.futures import CancelledError
from typing import Any

from jupyter_mgpu.on_engine.failure import is_library, is_ours
from jupyter_mgpu.output import failures

_WAITS = (KeyboardInterrupt, CancelledError)
"""They are raised wherever something waits, which no line in here means."""


def draw_refusals(shell: Any) -> None:
    """Let IPython draw errors that were raised on purpose here as `draw_short` does."""
    drawing = shell.InteractiveTB
    standard = drawing.structured_traceback

    def structured_traceback(kind: Any, error: Any = None, *args: Any, **options: Any) -> Any:
        if is_refusal(error):
            return failures.short_lines(error)
        return standard(kind, error, *args, **options)

    drawing.structured_traceback = structured_traceback


def is_refusal(error: BaseException | None) -> bool:
    """Tell whether a call of the user ended in a `raise` of this package, or while it waited."""
    if error is None or (error.__context__ is not None and not error.__suppress_context__):
        return False
    below = _below_the_user(
        [
            (frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename != "<string>"  # such as the __init__ of a dataclass
        ]
    )
    if not below or not is_ours(below[0][0]):
        return False
    file, line = below[-1]
    is_meant = is_ours(file) and linecache.getline(file, line).lstrip().startswith("raise ")
    return is_meant or isinstance(error, _WAITS)


def _below_the_user(lines: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the files and lines that a user's innermost line has led to."""
    inner = lines
    for place, (file, _) in enumerate(lines):
        if not (is_ours(file) or is_library(file)):
            inner = lines[place + 1 :]
    return inner
