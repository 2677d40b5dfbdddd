"""Draws failure records as Python draws tracebacks, with the notebook's own lines."""

import linecache
import re
from pathlib import Path
from types import TracebackType
from typing import Any

from jupyter_mgpu.output.publisher import current_shell

MAX_CHAIN = 4
_OURS = str(Path(__file__).parent.parent)
_CELL_FILE = re.compile(r"ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-")
_RED, _GREEN, _CYAN, _OFF = "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[0m"

Failure = dict[str, Any]


def fill_lines(failure: Failure) -> None:
    """Fill in the source lines that the engine did not have: the notebook's cells are here."""
    for frame in failure["frames"]:
        if not frame.get("text") and frame.get("line"):
            frame["text"] = linecache.getline(frame["file"], frame["line"]).rstrip("\n") or None
        label = cell_label(frame["file"])
        if label and not frame.get("label"):
            frame["label"] = label
    for other in (failure.get("cause"), failure.get("context"), *failure.get("group", ())):
        if other:
            fill_lines(other)


def cell_label(file: str) -> str | None:
    """Return what this kernel calls the cell with that file, such as `Cell In[3]`."""
    if not _CELL_FILE.search(file):
        return None
    namer = getattr(getattr(current_shell(), "compile", None), "format_code_name", None)
    named = namer(file) if namer is not None else None
    return " ".join(named) if named else "a notebook cell"


def render(failure: Failure, depth: int = MAX_CHAIN) -> list[str]:
    """Draw a failure, with what caused it above, as Python does.

    Args:
        failure: The failure record.
        depth: How many causes are drawn.

    Returns:
        The lines, without line ends.
    """
    lines: list[str] = []
    if depth > 0:
        if failure.get("cause"):
            lines += render(failure["cause"], depth - 1)
            lines += ["", "The above exception was the direct cause of the following one:", ""]
        elif failure.get("context"):
            lines += render(failure["context"], depth - 1)
            lines += ["", "During handling of the above exception, another one occurred:", ""]
    for frame in failure["frames"]:
        lines += frame_lines(frame)
    lines += syntax_lines(failure.get("syntax"))
    lines += last_line(failure).splitlines() or [failure["ename"]]
    for note in failure["notes"]:
        lines += note.splitlines()
    members = failure.get("group") or []
    for number, member in enumerate(members if depth > 0 else [], start=1):
        lines.append(f"  +-- {number} of {failure.get('group_size', len(members))}")
        lines += [f"  | {line}" for line in render(member, depth - 1)]
    return lines


def frame_lines(frame: dict[str, Any]) -> list[str]:
    """Draw one frame: where, and the line."""
    if frame.get("skipped"):
        return [f"  ... {frame['skipped']:,} frames left out ..."]
    file = frame.get("label") or f'File "{frame["file"]}"'
    within = "" if frame["name"] == "<module>" else f", in {frame['name']}"
    lines = [f"  {file}, line {frame['line']}{within}"]
    if frame.get("text"):
        lines.append(f"    {frame['text'].strip()}")
    return lines


def syntax_lines(syntax: dict[str, Any] | None) -> list[str]:
    """Draw where a SyntaxError is: the line, and a mark below it."""
    if not syntax or not syntax.get("lineno"):
        return []
    file = str(syntax.get("filename") or "<string>")
    name = syntax.get("label") or cell_label(file) or f'File "{file}"'
    lines = [f"  {name}, line {syntax['lineno']}"]
    text = str(syntax.get("text") or linecache.getline(file, syntax["lineno"])).rstrip("\n")
    if text.strip():
        lines.append(f"    {text.strip()}")
        offset = (syntax.get("offset") or 0) - 1 - (len(text) - len(text.lstrip()))
        if offset >= 0:
            lines.append(f"    {' ' * offset}^")
    return lines


def last_line(failure: Failure) -> str:
    """Return the line that names the exception and what it says."""
    name = failure["ename"]
    module = failure.get("module", "builtins")
    if module not in ("builtins", "__main__", ""):
        name = f"{module}.{name}"
    syntax = failure.get("syntax")
    text = (syntax or {}).get("msg") or failure["evalue"]
    return f"{name}: {text}" if text else name


def headline(title: str) -> str:
    """Draw the first line of a traceback in the notebook."""
    return f"{_RED}{title}{_OFF}"


def local_lines(trace: TracebackType | None) -> list[str]:
    """Draw the notebook's own frames that led to the call, so that one sees which call it was.

    A frame that only runs a magic says nothing: its cell is in the remote traceback. An exception
    that is raised again has its earlier ways behind the newest one; only that one is drawn.
    """
    lines: list[str] = []
    has_begun = False
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
        label = None if file.startswith(_OURS) else cell_label(file)
        if label is None:
            if has_begun:
                break
            continue
        has_begun = True
        text = linecache.getline(file, line).strip()
        if not text.startswith(("get_ipython().run_", "%")):
            lines += [f"{_CYAN}{label}{_OFF}, line {line}", f"{_GREEN}--> {text}{_OFF}"]
    return ["", "Raised here by:", *lines] if lines else []
