"""How a pool is now: what its owner answers, and that in one word for people."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from jupyter_mgpu.control.found import FoundPool
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import OwnerError, OwnerSilentError
from jupyter_mgpu.owner import endpoint

SILENT_S = 1.0
"""An owner that has not answered for so long is taken for silent."""
OTHER_VERSION = (
    "unknown",
    "its kernel has another version of jupyter_mgpu than this process; it can be stopped from here",
)
"""The state of a pool whose owner speaks in other words, and what it means."""

Answer = Mapping[str, Any]
"""What an owner says of its pool: status, tasks, ended, hidden."""


@dataclass(frozen=True, slots=True)
class Look:
    """A pool, now.

    Attributes:
        pool: What its record tells.
        answer: What its owner has said, None where it is silent.
        state: "starting", "ready", "busy", "degraded", "silent", "orphaned" or "unknown".
        words: The state in words.
    """

    pool: FoundPool
    answer: Answer | None
    state: str
    words: str


def look_at(pools: Iterable[FoundPool]) -> list[Look]:
    """Ask the owners of pools, all at once: takes a second at most."""
    asked = [(pool, call_in_thread(partial(_ask, pool), "mgpu-look")) for pool in pools]
    return [_look(pool, future) for pool, future in asked]


def _ask(pool: FoundPool) -> Answer | None:
    if pool.is_orphaned:
        return None
    try:
        return endpoint.ask(pool.socket, "look", timeout=SILENT_S)  # type: ignore[no-any-return]
    except OwnerSilentError:
        return None


def _look(pool: FoundPool, future: "Future[Answer | None]") -> Look:
    try:
        answer = future.result()
        state, words = state_of(pool, answer, is_silent=answer is None)
        if answer is not None:
            _ = answer["tasks"], answer["ended"]
    except (OwnerError, KeyError, TypeError):
        return Look(pool, None, *OTHER_VERSION)
    return Look(pool, answer, state, words)


def state_of(pool: FoundPool, answer: Answer | None, *, is_silent: bool) -> tuple[str, str]:
    """Say how a pool is, in one word and in words for people.

    Args:
        pool: What its record tells.
        answer: What its owner has said last, None before the first time.
        is_silent: Whether it has not answered for a second.
    """
    if pool.is_orphaned:
        num_left = len(pool.engines)
        left = "an engine is" if num_left == 1 else f"{num_left} engines are"
        return "orphaned", f"its {pool.owner_word} has died, {left} left: stop cleans up"
    if is_silent:
        return "silent", f"its {pool.owner_word} does not answer: it is stopped, or hangs"
    state, words = _state_of_engines(answer)
    return state, f"{words}; kept, no kernel" if pool.is_without_kernel else words


def _state_of_engines(answer: Answer | None) -> tuple[str, str]:
    engines: Sequence[Mapping[str, Any]] = answer["status"]["engines"] if answer else ()
    states = [str(engine["state"]) for engine in engines]
    num_alive = len(states) - states.count("dead")
    if not states:
        return "starting", "starting"
    if "starting" in states:
        num_ready = num_alive - states.count("starting")
        return "starting", f"{num_ready} of {len(states)} engines ready"
    if "dead" in states:
        return "degraded", f"{num_alive} of {len(states)} engines"
    num_busy = len(states) - states.count("idle")
    if num_busy:
        return "busy", f"{num_busy} of {len(states)} engines busy"
    return "ready", "ready"
