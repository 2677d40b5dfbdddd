"""Sends modules beside the notebook to engines of hosts that do not see its folder.

An engine asks for a module when it imports one that its host does not have. From then on each task
says how old the files are that were sent, so that the engine asks again for those that were edited.
"""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from jupyter_mgpu.exchange.lines import Line
from jupyter_mgpu.wire import Header

Stamp = list[int]
"""When a file was changed, in ns, and its size."""

_LIBRARY = sysconfig.get_paths()["stdlib"]
_sent: dict[Line, dict[str, Path]] = {}


def answer(line: Line, header: Header, places: Sequence[str] | None = None) -> None:
    """Answer an engine that asks for a module.

    Args:
        line: Leads to it.
        header: What it asks.
        places: Where to look; this process's own path by default.
    """
    name = header["name"]
    reply: Header = {"op": "answer", "id": header["id"], "status": "none"}
    frames: list[bytes] = []
    found = _find(name, sys.path if places is None else places)
    if found is not None:
        base, path = found
        place = {"path": str(path.relative_to(base)), "is_folder": path.is_dir()}
        with contextlib.suppress(OSError):  # it was removed in this moment
            if not path.is_dir():
                place["stamp"] = _stamp(path)  # before it is read: what is edited now comes again
                frames.append(path.read_bytes())
                _sent.setdefault(line, {})[name] = path
            reply.update(place, status="ok")
    line.answer(header["engine"], reply, frames)


def stamps(line: Line) -> dict[str, Stamp]:
    """Say how old the files are of the modules that engines of a pool have asked for, by name."""
    found = {name: _stamp(path) for name, path in list(_sent.get(line, {}).items())}
    return {name: stamp for name, stamp in found.items() if stamp is not None}


def know(line: Line, names: Iterable[str]) -> None:
    """Take note of modules that engines have got in the time of an earlier kernel."""
    for name in names:
        found = _find(name, sys.path)
        if found is not None and found[1].is_file():
            _sent.setdefault(line, {})[name] = found[1]


def forget_line(line: Line) -> None:
    """Take note that a pool has ended."""
    _sent.pop(line, None)


def _find(name: str, places: Sequence[str]) -> tuple[Path, Path] | None:
    """Find a module of the user: where the search began, and its file, or its folder."""
    inside = Path(*name.split("."))
    folders = []
    for entry in places:
        base = Path(entry or Path.cwd())
        if _is_library(base) or not base.is_dir():
            continue
        for path in (base / inside / "__init__.py", base / inside.with_suffix(".py")):
            if path.is_file():
                return base, path
        if (base / inside).is_dir():
            folders.append((base, base / inside))  # a package only if there is no other
    return folders[0] if folders else None


def _is_library(folder: Path) -> bool:
    text = str(folder)
    return "site-packages" in text or "dist-packages" in text or text.startswith(_LIBRARY)


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - asked before each task
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size]
