"""Turns an exception into a failure record: plain JSON that needs no class to be read.

Keys: `ename`, `module`, `evalue`, `frames`, `notes`, `cause`, `context`, `aborted`, `where`; where
they apply `syntax` (the fields of a SyntaxError) and `group` (the members of an exception group).
A frame has `file`, `line`, `end_line`, `name`, `text`, and `label` for notebook cells; `skipped`
in its place counts frames that were left out.
"""

import itertools
import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

MAX_FRAMES_FIRST = 20
MAX_FRAMES_LAST = 30
MAX_CHAIN = 8
MAX_GROUP = 16
MAX_NOTES = 20
MAX_TEXT = 20_000
MAX_LINE = 1000

_OURS = str(Path(__file__).parent.parent)
_name_cell: Callable[[str], Any] | None = None

Failure = dict[str, Any]


def name_cells(namer: Callable[[str], Any] | None) -> None:
    """Set what names a notebook cell after its file, as `("Cell", "In[3]")` or None."""
    global _name_cell
    _name_cell = namer


def describe(error: BaseException) -> Failure:
    """Describe an exception with everything that a traceback would show.

    It never raises, and what it returns is bounded, however long or odd the exception is.

    Args:
        error: What the task raised. Frames of this package are left out, unless nothing else is
            there.

    Returns:
        The failure record.
    """
    try:
        return _describe(error, set(), MAX_CHAIN)
    except BaseException as problem:  # noqa: BLE001 - a reply must come, whatever the exception does
        note = f"(its traceback could not be read: {type(problem).__name__})"
        return _record(type(error).__name__, "", note)


def _record(ename: str, module: str, evalue: str) -> Failure:
    return {
        "ename": ename,
        "module": module,
        "evalue": evalue,
        "frames": [],
        "notes": [],
        "cause": None,
        "context": None,
        "aborted": False,
        "where": "",
    }


def _describe(error: BaseException, seen: set[int], depth: int) -> Failure:
    seen.add(id(error))
    kind = type(error)
    record = _record(kind.__qualname__, kind.__module__, _text_of(error))
    record["frames"] = _frames(error.__traceback__)
    record["where"] = where(record["frames"])
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list | tuple):
        record["notes"] = [_cut(str(note), MAX_TEXT) for note in notes[:MAX_NOTES]]
    if isinstance(error, SyntaxError):
        record["syntax"] = _syntax_fields(error)
        files = [frame["file"] for frame in record["frames"]]
        if all(is_library(file) or is_ours(file) for file in files):
            record["frames"] = []  # who called the compiler; the place is in the error
    if depth > 0:
        cause, context = error.__cause__, error.__context__
        if cause is not None:
            if id(cause) not in seen:
                record["cause"] = _describe(cause, seen, depth - 1)
        elif context is not None and not error.__suppress_context__ and id(context) not in seen:
            record["context"] = _describe(context, seen, depth - 1)
        if isinstance(error, BaseExceptionGroup):
            members = [e for e in error.exceptions if id(e) not in seen]
            record["group"] = [_describe(e, seen, depth - 1) for e in members[:MAX_GROUP]]
            record["group_size"] = len(error.exceptions)
    return record


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as problem:  # noqa: BLE001 - __str__ is user code and may do anything
        return f"<its text cannot be shown: __str__ raised {type(problem).__name__}>"
    return _cut(text, MAX_TEXT)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... ({len(text) - limit} characters left out) ... {text[-half:]}"


def _syntax_fields(error: SyntaxError) -> dict[str, Any]:
    fields = ("msg", "filename", "lineno", "offset", "end_lineno", "end_offset", "text")
    values = {name: getattr(error, name, None) for name in fields}
    bounded: dict[str, Any] = {
        name: value if value is None or isinstance(value, int) else _cut(str(value), MAX_LINE)
        for name, value in values.items()
    }
    bounded["label"] = _label(str(error.filename))
    return bounded


def _frames(trace: TracebackType | None) -> list[dict[str, Any]]:
    """List the frames of a traceback, outermost first, without those of this package."""
    places = []
    while trace is not None:
        places.append((trace.tb_frame.f_code, trace.tb_lineno, trace.tb_lasti))
        trace = trace.tb_next
    users = [place for place in places if not is_ours(place[0].co_filename)]
    places = users or places[-1:]
    skipped = len(places) - MAX_FRAMES_FIRST - MAX_FRAMES_LAST
    if skipped > 0:
        first = [_frame(*place) for place in places[:MAX_FRAMES_FIRST]]
        last = [_frame(*place) for place in places[-MAX_FRAMES_LAST:]]
        gap = {"file": "", "line": 0, "end_line": 0, "name": "", "text": None, "skipped": skipped}
        return [*first, gap, *last]
    return [_frame(*place) for place in places]


def is_ours(file: str) -> bool:
    """Tell whether a file is of this package."""
    return file.startswith(_OURS)


def _frame(code: Any, line: int, instruction: int) -> dict[str, Any]:
    file = code.co_filename
    end_line = line
    positions = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    if positions and positions[1] is not None and positions[0] == line:
        end_line = positions[1]
    text = linecache.getline(file, line) if line else ""
    frame = {
        "file": file,
        "line": line,
        "end_line": end_line,
        "name": code.co_name,
        "text": _cut(text.rstrip("\n"), MAX_LINE) if text else None,
    }
    label = _label(file)
    if label:
        frame["label"] = label
    return frame


def _label(file: str) -> str | None:
    if _name_cell is None:
        return None
    named = _name_cell(file)
    return " ".join(named) if named else None


def where(frames: list[dict[str, Any]]) -> str:
    """Say in a few words where the last line of the user's own code is.

    Args:
        frames: Frames of a failure record, outermost first.

    Returns:
        Such as `Cell In[3], line 2` or `train.py, line 12, in fit`; empty without frames.
    """
    frame = own_frame(frames)
    if frame is None:
        return ""
    name = frame.get("label") or Path(frame["file"]).name
    suffix = "" if frame["name"] == "<module>" else f", in {frame['name']}"
    return f"{name}, line {frame['line']}{suffix}"


def own_frame(frames: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the last frame of the user's own code, or of a library where there is none."""
    users = [frame for frame in frames if frame["line"] and not is_ours(frame["file"])]
    own = [frame for frame in users if not is_library(frame["file"])] or users
    return own[-1] if own else None


def is_library(file: str) -> bool:
    """Tell whether a file is of an installed or the standard library."""
    return "site-packages" in file or file.startswith((_STDLIB, "<frozen"))


_STDLIB = str(Path(traceback.__file__).parent) + "/"
