"""What can be done to a pool from outside: through its owner, by signal when that is silent.

Every call returns within a few seconds. A request that a stopped kernel did not answer stays in
its socket and is done when it goes on.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jupyter_mgpu.control import signals
from jupyter_mgpu.control.found import FoundPool
from jupyter_mgpu.control.looking import OTHER_VERSION, SILENT_S
from jupyter_mgpu.errors import MgpuError, OwnerError, OwnerSilentError
from jupyter_mgpu.owner import endpoint

END_S = 5.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a request.

    Attributes:
        by: Who did it: the pool's owner, or a signal.
        words: A sentence for people.
    """

    by: Literal["owner", "signal"]
    words: str


def interrupt(pool: FoundPool, task: str | None = None, *, force: bool = False) -> Done:
    """Interrupt one task, or all that run; the engines keep their variables.

    Args:
        pool: The pool.
        task: Its id; None for all that run. Nothing queued is touched then.
        force: Replace the engines that still run it, as a second Stop does.

    Raises:
        OwnerSilentError: If the owner is silent, and one task was meant.
        OwnerError: If the owner refuses.
    """
    try:
        tasks = _running(pool) if task is None else [task]
        for each in tasks:
            _ask(pool, "interrupt", task=each, force=force)
    except OwnerSilentError:
        if task is not None:
            raise  # a signal would end other tasks as well: only the owner knows who runs it
        ranks = signals.end_engines(pool) if force else signals.interrupt_engines(pool)
        verb = "ended" if force else "interrupted"
        return Done("signal", f"{_silent(pool)}, so {_engines(ranks)} {verb} by signal.")
    if not tasks:
        return Done("owner", f"Nothing runs on the pool {pool.name!r}.")
    what = f"{len(tasks)} tasks" if len(tasks) > 1 else "1 task"
    return Done("owner", f"{what} on the pool {pool.name!r} {_was(tasks)} interrupted.")


def cancel(pool: FoundPool, task: str) -> Done:
    """Take a task out of the queue, or end it while it runs.

    Raises:
        OwnerSilentError: If the owner is silent: only it knows who runs the task.
        OwnerError: If there is no such task.
    """
    _ask(pool, "cancel", task=task)
    return Done("owner", f"The task was cancelled on the pool {pool.name!r}.")


def request_stop(pool: FoundPool, task: str, after: Literal["step", "epoch"] = "step") -> Done:
    """Ask a task to end by itself.

    Raises:
        OwnerSilentError: If the owner is silent.
        OwnerError: If there is no such task.
    """
    extra = {} if after == "step" else {"after": after}
    _ask(pool, "request_stop", task=task, **extra)
    return Done("owner", f"The task was asked to stop after its {after}.")


def restart(pool: FoundPool, ranks: Sequence[int] = ()) -> Done:
    """Replace the engines of some ranks, all by default.

    Raises:
        OwnerSilentError: If the owner is silent: nobody else can start engines.
        OwnerError: If it refuses.
    """
    _ask(pool, "restart", ranks=list(ranks))
    listed = ", ".join(map(str, ranks))
    which = f"rank{'s' * (len(ranks) > 1)} {listed}" if ranks else "all ranks"
    return Done("owner", f"New engines start on {which} of the pool {pool.name!r}.")


def stop(pool: FoundPool, *, wait_s: float = END_S) -> Done:
    """End a pool: busy engines at once. Also cleans up what a dead kernel has left.

    Args:
        pool: The pool.
        wait_s: How long to wait for its end.

    Raises:
        OwnerError: If the owner refuses.
        MgpuError: If engines are still there after that time, as a driver may hold them.
    """
    if not pool.is_orphaned:
        try:
            _ask(pool, "stop")
        except OwnerSilentError:
            pass
        else:
            if _wait(lambda: not pool.record_path.exists(), wait_s):
                return Done("owner", f"The pool {pool.name!r} was stopped.")
            return Done("owner", f"The pool {pool.name!r} is being stopped.")
    return _stop_by_signal(pool, wait_s)


def _stop_by_signal(pool: FoundPool, wait_s: float) -> Done:
    ranks = signals.end_engines(pool)
    if not _wait(lambda: not signals.living_ranks(pool), wait_s):
        left = signals.living_ranks(pool)
        raise MgpuError(
            f"{_engines(left).capitalize()} still there {wait_s:g} s after SIGKILL: "
            "a driver or file system holds them. Only time or a reboot helps."
        )
    if pool.is_orphaned:
        signals.remove_remains(pool)
        return Done("signal", f"What was left of the pool {pool.name!r} was ended: {_list(ranks)}.")
    return Done(
        "signal",
        f"{_silent(pool)}, so {_engines(ranks)} ended by signal. "
        f"The pool ends when its {pool.owner_word} goes on, or with it.",
    )


def _running(pool: FoundPool) -> list[str]:
    answer = _ask(pool, "look")
    try:
        return [task["id"] for task in answer["tasks"] if task["state"] == "running"]
    except (KeyError, TypeError):
        raise OwnerError(f"The pool {pool.name!r} cannot be asked: {OTHER_VERSION[1]}.") from None


def _ask(pool: FoundPool, operation: str, **fields: Any) -> Any:
    if pool.is_orphaned:
        raise OwnerSilentError(
            f"The {pool.owner_word} of the pool {pool.name!r} has died, so it can only be stopped."
        )
    try:
        return endpoint.ask(pool.socket, operation, timeout=SILENT_S, **fields)
    except OwnerSilentError as error:
        raise OwnerSilentError(
            f"{_silent(pool)}: it is stopped, or hangs. It was asked and does it when it goes on; "
            "interrupt and stop work at once."
        ) from error


def _silent(pool: FoundPool) -> str:
    if pool.is_orphaned:
        return f"The {pool.owner_word} of the pool {pool.name!r} has died"
    return (
        f"The {pool.owner_word} of the pool {pool.name!r} (process {pool.kernel_pid}) "
        f"has not answered for {SILENT_S:g} s"
    )


def _was(things: Sequence[object]) -> str:
    return "was" if len(things) == 1 else "were"


def _list(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no engine"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _engines(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no engine was"
    return f"the engine{'s' * (len(ranks) > 1)} of {_list(ranks)} {_was(ranks)}"


def _wait(condition: Any, seconds: float) -> bool:
    """Look until something has come true, in a process that is not ours."""
    deadline_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)
    return True
