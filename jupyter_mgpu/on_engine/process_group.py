"""torch.distributed on an engine, as the runner and the control thread see it.

    engine start     install()
    before a cell    begin(generation, members)    retires a group of an older generation
    before a task    begin_alone()                 of one engine: comm refuses to wait in it
    in the cell      init_process_group(), ...     user code; see collectives/patches.py
    Stop             state() ... state(), is_still -> abort(cell)     the control thread
    the cell failed  caused_by_abort(error)        learns whether the group is still good
    in the reply     health()                      the owner raises the generation if it is not
    after a failure  after_interrupt(), forget_tracebacks(shell)

Nothing here imports torch; where the user's code has not, every function is a cheap no-op.
"""

import contextlib
import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_mgpu.errors import CollectiveError
from jupyter_mgpu.on_engine import imports
from jupyter_mgpu.on_engine.collectives import patches
from jupyter_mgpu.on_engine.collectives.board import PlaceBoard
from jupyter_mgpu.on_engine.collectives.groups import (
    EngineGroups,
    abort_backends,
    backend_error,
    is_collective_failure,
)
from jupyter_mgpu.on_engine.collectives.places import (
    Place,
    main_thread_frame,
    main_thread_place,
)
from jupyter_mgpu.packing.loaded import loaded

ABORT_S = 1.0
_groups = EngineGroups()
_board = PlaceBoard(_groups)
_installed = False
_seen: tuple[str, float] = ("", 0.0)


def install() -> None:
    """Have torch.distributed patched as soon as the user's code imports it. Idempotent."""
    global _installed
    _installed = True
    patches.install(_groups)


def is_installed() -> bool:
    """Say whether this process is an engine."""
    return _installed


def begin(generation: int, members: Sequence[int] = ()) -> None:
    """Start a cell on the main thread.

    Args:
        generation: The same number on all ranks; a group of an older generation is retired.
        members: The ranks of the pool that run this cell; all by default. Groups of different
            members never meet, and count their inits apart.
    """
    _groups.begin(generation, tuple(members))


def begin_alone() -> None:
    """Start a task of this engine alone: comm raises in it, since nobody would ever come."""
    _groups.begin(_groups.generation, _groups.members)
    _groups.is_alone = True


def state() -> dict[str, Any]:
    """Describe the main thread and the group. Callable from any thread, also while it blocks.

    Returns:
        `operation` (the collective, or None), `where` (the user's line), `still_s` (how long
        it is known to be at this very place), `position` and `moved_bytes` (for `is_still`),
        `generation`, `group`: `none`, `good` or why it may not be used, and `importing`: the
        library whose import keeps an interrupt waiting, or None. `cell`: which one runs, for
        `abort`; None between two.
    """
    global _seen
    cell = _groups.cell
    place: Place = main_thread_place()
    now = time.monotonic()
    if place.key != _seen[0]:
        _seen = (place.key, now)
    group = _groups.default()
    return {
        "cell": cell,
        "operation": place.operation,
        "where": place.where,
        "still_s": now - _seen[1],
        "position": place.key,
        "moved_bytes": _groups.tracker.moved_bytes() if group is not None else 0,
        "generation": _groups.generation,
        "group": _groups.trouble or ("good" if group is not None else "none"),
        "importing": imports.in_protected_import(main_thread_frame()),
    }


def is_still(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Say whether an engine did not move between two states: no step in Python, no byte sent.

    Only then it may be aborted: while data flows an abort can leave gloo waiting for ever.
    """
    return all(before[name] == after[name] for name in ("cell", "position", "moved_bytes"))


def abort(cell: int | None) -> dict[str, Any]:
    """Free the main thread from a collective or a store. Callable from any thread.

    The blocked call raises within a fraction of a second, as KeyboardInterrupt if SIGINT came
    before; the peers' calls raise too. The group is not used again.

    Args:
        cell: The cell that is to be freed, as `state` has told. If it has ended meanwhile,
            perhaps freed by a peer's abort, nothing is done: the next one may be making a group.
    """
    place = main_thread_place()
    with _groups.abort_lock:
        if cell is None or cell != _groups.cell:
            return {"aborted": False}
        _groups.was_aborted = True
        _groups.trouble = _groups.trouble or "was aborted"
        backends = abort_backends(ABORT_S)
        num_sockets = _groups.tracker.shut_down()
    return {
        "aborted": True,
        "sockets": num_sockets,
        "backends": backends,
        "operation": place.operation,
        "where": place.where,
    }


def caused_by_abort(error: BaseException) -> bool:
    """Judge an error that ended a cell: did our own abort cause it?

    Call it for each failed cell: the group learns from it whether it may be used again.
    """
    return _groups.judge(error) == "abort"


def failure_kind(error: BaseException) -> str | None:
    """Say what an error tells of the group: `interrupt`, `abort`, `timeout`, `peer` or None."""
    return _groups.judge(error)


def health() -> dict[str, Any]:
    """Describe the group at the end of a cell, for the owner. No abort reaches the cell after it.

    Returns:
        `usable`: False if the owner must raise the generation on all ranks. `reason`: why.
        `used`: whether the cell used a group. `sequence`: how many operations the groups have
        seen. Where ranks differ in it after a cell that failed on one of them, raise the
        generation as well; after others it says nothing, since a rank may be in more subgroups
        or sends than another.
    """
    with _groups.abort_lock:
        _groups.cell = None
    used = _groups.was_used()
    _board.end_cell()
    return {
        "usable": _groups.trouble is None and not _groups.has_left_others,
        "reason": _groups.trouble,
        "used": used,
        "sequence": _groups.sequence(),
        "generation": _groups.generation,
    }


def check() -> None:
    """Raise what a backend knows but has not raised. Call it after a cell that succeeded.

    Raises:
        CollectiveError: If a collective of NCCL timed out or failed in the background: what it
            should have filled holds garbage.
    """
    group = _groups.default()
    found = backend_error(group) if group is not None else None
    if found is not None:
        _groups.trouble = _groups.trouble or "timed out"
        raise CollectiveError(
            f"A collective of this cell failed in the background ({found}), so its results "
            "cannot be trusted. Run the cell again after init_process_group()."
        )


def after_interrupt() -> None:
    """Retire the group if it may not be used again.

    Call it on the main thread after a failed cell, before `forget_tracebacks`, which collects
    what this leaves.
    """
    if _groups.trouble is not None:
        _groups.retire(_groups.trouble, collect=False)


def give_up(reason: str) -> None:
    """End the group at once, such that health() reports it. Call it on the main thread."""
    _groups.retire(reason)
    _groups.trouble = reason


def trouble() -> str | None:
    """Say why the group may not be used again, or None."""
    return _groups.trouble


def board() -> PlaceBoard:
    """Return the board on which comm writes where this rank waits."""
    return _board


def demand_gang(operation: str) -> None:
    """Refuse an operation of several ranks where there are none.

    Raises:
        CollectiveError: In the kernel, in a task of one engine alone, and in a cell that runs on
            some of the ranks only.
    """
    if not _installed:
        raise CollectiveError(
            f"{operation} works between the ranks of a pool, but this is not one of them. "
            "Put the call into a %%spmd cell."
        )
    if _groups.is_alone:
        raise CollectiveError(
            f"{operation} needs all ranks, but this task runs on one engine alone. "
            "Put the call into a %%spmd cell."
        )
    if 0 < len(_groups.members) < int(os.environ.get("WORLD_SIZE", "1")):
        raise CollectiveError(
            f"{operation} needs all ranks, but this cell runs on {_groups.describe_members()} "
            "only. Run it without --ranks."
        )


def forget_tracebacks(shell: Any = None) -> None:
    """Drop the references that a failed cell leaves, so that its networks free their memory.

    Args:
        shell: IPython's shell, or anything with some of its attributes.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        with contextlib.suppress(AttributeError):
            delattr(sys, name)
    for formatter in ("InteractiveTB", "SyntaxTB"):
        if hasattr(getattr(shell, formatter, None), "tb"):
            getattr(shell, formatter).tb = None
    if hasattr(shell, "_last_traceback"):
        shell._last_traceback = None  # noqa: SLF001  IPython has no other way to drop it
    gc.collect()
    _groups.bury()
    torch = loaded("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # else the engine would keep what a stopped training had


__all__ = [
    "abort",
    "after_interrupt",
    "begin",
    "begin_alone",
    "board",
    "caused_by_abort",
    "check",
    "demand_gang",
    "failure_kind",
    "forget_tracebacks",
    "give_up",
    "health",
    "install",
    "is_collective_failure",
    "is_installed",
    "is_still",
    "state",
    "trouble",
]
