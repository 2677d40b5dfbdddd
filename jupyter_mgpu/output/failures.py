"""Makes local exceptions of failure records: with their own type, place and remote traceback.

What the user catches is the task's own exception (`except ValueError` works). What the user reads
is one merged traceback: first failing rank first, equal errors of other ranks folded, what our
abort caused below in a line each.
"""

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.errors import RemoteError
from jupyter_mgpu.on_engine.failure import describe, own_frame
from jupyter_mgpu.output import traceback_text
from jupyter_mgpu.output.lane import ranks_text

Failure = dict[str, Any]

MAX_QUOTED = 60


_ORIGIN = "_mgpu_origin"
"""Where an exception keeps its failure record; a key of its `__dict__`, so it is pickled along."""


@dataclass(frozen=True, slots=True)
class Origin:
    """How one rank failed.

    Attributes:
        rank: The rank.
        label: What the rank runs on, such as `GPU 3`.
        failure: The failure record.
    """

    rank: int
    label: str
    failure: Failure


class Rendering:
    """Draws a remote exception's traceback for IPython; lives on the exception instance.

    A class of its own, because exceptions are pickled with their attributes.
    """

    def __init__(self, error: BaseException, lines: list[str]) -> None:
        self._error = error
        self._lines = lines

    def __call__(self) -> list[str]:
        """Return the traceback's lines."""
        return [*self._lines, *traceback_text.local_lines(self._error.__traceback__)]


def rebuild(
    failure: Failure, frames: Sequence[bytes | memoryview], rank: int, label: str
) -> BaseException:
    """Make the exception that a task raised.

    Args:
        failure: The failure record; missing source lines are filled in.
        frames: The packed exception; may be empty.
        rank: Where it was raised.
        label: What that rank runs on, such as `GPU 3`.

    Returns:
        The task's own exception, or a `RemoteError` that says the same, noting rank and device.
    """
    traceback_text.fill_lines(failure)
    error = _unpack(failure, frames)
    origin = Origin(rank, label, failure)
    error.__dict__[_ORIGIN] = origin
    _annotate(error, _place([origin]), [])
    return error


def draw_short(kind: type[BaseException]) -> None:
    """Let IPython draw errors of a class without the lines in here that raised them."""
    kind._render_traceback_ = short_lines  # type: ignore[attr-defined]


def short_lines(error: BaseException) -> list[str]:
    """Draw an error by what it says and the notebook's line that led to it."""
    notes = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
    cause = error.__cause__
    if cause is not None:
        notes.append(f"Caused by {type(cause).__name__}: {cause}")
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    place = traceback_text.syntax_lines(describe(error).get("syntax"))
    lines = [traceback_text.headline(type(error).__name__), *place, *message.splitlines(), *notes]
    return lines + traceback_text.local_lines(error.__traceback__)


def draw_own_lines(error: BaseException) -> None:
    """Let IPython draw an error of the user's code that was called here without the lines in here.

    Args:
        error: Just caught. How it draws itself, if it does, stays.
    """
    if hasattr(error, "_render_traceback_"):
        return
    failure = describe(error)
    traceback_text.fill_lines(failure)
    lines = [traceback_text.headline(failure["ename"]), *traceback_text.render(failure)]
    error.__dict__["_render_traceback_"] = Rendering(error, lines)


@contextlib.contextmanager
def own_lines() -> Iterator[None]:
    """Draw errors that leave the block as `draw_own_lines` does."""
    try:
        yield
    except Exception as error:
        draw_own_lines(error)
        raise


def check_syntax(text: str, magic: str) -> None:
    """Raise a cell's SyntaxError here, where its lines are, before anything runs.

    Args:
        text: The cell as Python.
        magic: What it starts with.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    try:
        compile(text, f"<the {magic} cell>", "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        draw_own_lines(error)
        raise


def draw_syntax_errors(shell: Any) -> None:
    """Let IPython ask a SyntaxError how it draws itself, as it asks all other errors."""
    drawing = shell.SyntaxTB
    standard = drawing.structured_traceback

    def structured_traceback(kind: Any, error: Any, *args: Any, **options: Any) -> Any:
        own = getattr(error, "_render_traceback_", None)
        return standard(kind, error, *args, **options) if own is None else own()

    drawing.structured_traceback = structured_traceback


def merge(errors: Mapping[int, BaseException], first: int | None = None) -> BaseException:
    """Make one exception of the errors of a cell's ranks.

    Args:
        errors: What was raised, by rank, as `rebuild` made it; others (a dead engine) are taken
            as they are.
        first: The rank that failed first; its own exception is returned. If it was only aborted
            because another one failed, that other one counts as first.

    Returns:
        The exception, with notes on the rank, the remote traceback and the other ranks.
    """
    origins = {rank: _origin(rank, error) for rank, error in errors.items()}
    first = _true_first(origins, first)
    key = _key(origins[first].failure)
    same = [rank for rank in sorted(origins) if _key(origins[rank].failure) == key]
    others = _others([origins[rank] for rank in sorted(origins) if rank not in same])
    error = errors[first]
    if _ORIGIN in error.__dict__:
        _annotate(error, _place([origins[rank] for rank in same]), others)
    else:
        for line in others:
            error.add_note(line)
    return error


def _origin(rank: int, error: BaseException) -> Origin:
    known = error.__dict__.get(_ORIGIN)
    return known if isinstance(known, Origin) else Origin(rank, "", describe(error))


def _annotate(error: BaseException, place: str, others: Sequence[str]) -> None:
    """Write on an exception where it comes from; what was written before is replaced."""
    failure = error.__dict__[_ORIGIN].failure
    remote = traceback_text.render(failure)
    error.__dict__["__notes__"] = [
        *failure["notes"],
        f"on {place}",
        "Remote traceback:\n" + "\n".join(remote),
        *others,
    ]
    lines = [traceback_text.headline(f"{failure['ename']} on {place}"), *remote]
    if others:
        lines += ["", *others]
    error.__dict__["_render_traceback_"] = Rendering(error, lines)


def _true_first(origins: Mapping[int, Origin], first: int | None) -> int:
    own = [rank for rank in sorted(origins) if not origins[rank].failure.get("aborted")]
    if first is not None and first in origins and (first in own or not own):
        return first
    return (own or sorted(origins))[0]


def _unpack(failure: Failure, frames: Sequence[bytes | memoryview]) -> BaseException:
    if frames:
        # Whatever an exception's own __init__ or __setstate__ raises: the record has the facts.
        with contextlib.suppress(BaseException):
            error = packing.unpack(list(frames))
            if isinstance(error, BaseException):
                return error.with_traceback(None)
    message = failure["evalue"]
    if failure["ename"] == "KeyboardInterrupt":
        return KeyboardInterrupt(*[message] if message else [])
    text = f"{failure['ename']}: {message}" if message else failure["ename"]
    return RemoteError(text, type_name=failure["ename"])


def _key(failure: Failure) -> tuple[Any, ...]:
    lines = tuple((f.get("label") or f["file"], f["line"]) for f in failure["frames"][-3:])
    return (failure["ename"], failure["evalue"], lines, bool(failure.get("aborted")))


def _place(group: Sequence[Origin]) -> str:
    """Say where: `rank 1 (GPU 3)`, `ranks 0-3`."""
    if len(group) == 1:
        return (
            f"rank {group[0].rank} ({group[0].label})"
            if group[0].label
            else (f"rank {group[0].rank}")
        )
    return ranks_text(one.rank for one in group)


def _others(origins: Sequence[Origin]) -> list[str]:
    """Describe the other ranks: their own errors first, then what our abort caused."""
    groups: dict[tuple[Any, ...], list[Origin]] = {}
    for origin in origins:
        groups.setdefault(_key(origin.failure), []).append(origin)
    own, aborted = [], []
    for group in groups.values():
        failure = group[0].failure
        where = f" ({failure['where']})" if failure.get("where") else ""
        if failure.get("aborted"):
            aborted.append(f"{_place(group)}: aborted{_at(failure)}{where}")
        else:
            own.append(f"{_place(group)}: {traceback_text.last_line(failure)}{where}")
    return own + aborted


def _at(failure: Failure) -> str:
    """Quote the user's line that a rank was in, such as ` in dist.barrier()`."""
    frame = own_frame(failure["frames"])
    text = str((frame or {}).get("text") or "").strip()
    return f" in {text}" if 0 < len(text) <= MAX_QUOTED else ""
