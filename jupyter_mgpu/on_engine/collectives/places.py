"""Where a thread is: in which collective, called by which line of the user's code."""

import functools
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_OUR_FOLDER = f"{Path(__file__).parent.parent.parent}/"
_COMM_FILE = f"{Path(__file__).parent.parent}/comm.py"
_COMM_NAMES = ("all_reduce", "barrier", "broadcast", "gather", "receive", "send")
_STDLIB = f"{sysconfig.get_paths()['stdlib']}/"
_LOGGERS = ("c10d_logger.py",)  # torch's own wrappers around each collective
_DDP_FILE = "/torch/nn/parallel/distributed.py"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread is.

    Attributes:
        operation: The collective, as the user wrote it, or None outside of one.
        where: The user's line, such as `cell line 3` or `train.py:12`; empty if there is none.
        key: Equal for two looks only if the thread did not move between them.
    """

    operation: str | None
    where: str
    key: str


def main_thread_frame() -> FrameType | None:
    """Return the main thread's innermost frame. Callable from any thread, also while it blocks."""
    ident = threading.main_thread().ident
    return sys._current_frames().get(ident or 0)  # noqa: SLF001  the documented way in


def main_thread_place() -> Place:
    """Look where the main thread is. Callable from any thread, also while it is blocked."""
    return place_of(main_thread_frame())


def place_of(frame: FrameType | None) -> Place:
    """Describe the place of a thread from its innermost frame."""
    operation = None
    where = ""
    keys = []
    while frame is not None:
        if not where:
            if _is_users(frame.f_code.co_filename):
                where = describe_line(frame.f_code.co_filename, frame.f_lineno)
            else:
                operation = _operation(frame) or operation
        keys.append(f"{id(frame):x}.{frame.f_lasti}")
        frame = frame.f_back
    return Place(operation, where, "/".join(keys))


def calling_line(frame: FrameType | None) -> str:
    """Describe the nearest line of the user's code that led to this frame."""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return describe_line(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""


def describe_line(file: str, line: int) -> str:
    """Say `cell line 3` for code of a notebook, `train.py:3` for a file."""
    is_cell = file.startswith("<") or "ipykernel_" in file or "/mgpu-cell-" in file
    return f"cell line {line}" if is_cell else f"{Path(file).name}:{line}"


@functools.cache
def _is_users(file: str) -> bool:
    if file.startswith("<frozen "):
        return False
    return not ("site-packages/" in file or file.startswith((_OUR_FOLDER, _STDLIB)))


def _operation(frame: FrameType) -> str | None:
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    if file == _COMM_FILE:
        return f"comm.{name}" if name in _COMM_NAMES else None
    if file.endswith(_DDP_FILE):
        return "DistributedDataParallel." + name.removeprefix("_")
    if "/torch/distributed/" in file and not file.endswith(_LOGGERS):
        return None if name.startswith(("_", "<")) else name
    if name == "backward" and "/torch/" in file:
        return "backward"
    return None
