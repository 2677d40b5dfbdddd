"""Says why a running cell does not move: who waits in a collective for whom, who has not begun."""

import contextlib
import os
import time
from collections.abc import Collection
from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.owner.pool_owner import PoolOwner
from jupyter_mgpu.owner.queue import Task

HANG_VARIABLE = "MGPU_HANG_REPORT_S"
HANG_S = 30.0
"""A rank that stands so long in one collective is told as waiting."""
LOOK_S = 2.0
ANSWER_S = 5.0

_Stack = dict[str, Any]
"""What an engine answers to the question where its main thread is."""


class Standstill:
    """Looks at the ranks of one running cell from time to time.

    Args:
        owner: Asks the engines, also while they are busy.
        task: The cell.

    Raises:
        MgpuError: If the time that is set in the environment is no number.
    """

    def __init__(self, owner: PoolOwner, task: Task) -> None:
        self._owner = owner
        self._task = task
        self._hang_s = _hang_s()
        self._late: set[int] = set()
        self.look_s = min(LOOK_S, self._hang_s)

    def explain(self, left: Collection[int]) -> str:
        """Say in one line why the cell does not move; empty where it seems to.

        Args:
            left: The ranks that have not ended.
        """
        stacks = self._ask(left)
        late = self._unbegun(stacks)
        if not late and not any(self._waits(stack) for stack in stacks.values()):
            return ""
        return ", ".join(
            f"rank {rank} {self._describe(rank, left, stacks, late)}" for rank in self._task.ranks
        )

    def _ask(self, ranks: Collection[int]) -> dict[int, _Stack]:
        asked = {rank: self._owner.rpc(rank, "stack") for rank in sorted(ranks)}
        deadline_s = time.monotonic() + ANSWER_S
        stacks = {}
        for rank, answer in asked.items():
            with contextlib.suppress(MgpuError, TimeoutError):
                stacks[rank] = answer.result(max(0.0, deadline_s - time.monotonic()))
        return stacks

    def _unbegun(self, stacks: dict[int, _Stack]) -> set[int]:
        """Find the ranks whose main thread is busy with something else than this cell."""
        late = {
            rank
            for rank, stack in stacks.items()
            if stack["task"] != self._task.id and not _is_idle(stack)
        }
        # Seen twice: the end of what a rank has just finished may be on its way.
        seen_twice = late & self._late
        self._late = late
        return seen_twice

    def _waits(self, stack: _Stack) -> bool:
        place = stack["group"]
        return bool(place["operation"]) and place["still_s"] >= self._hang_s

    def _describe(
        self, rank: int, left: Collection[int], stacks: dict[int, _Stack], late: set[int]
    ) -> str:
        if rank not in left:
            return "has ended"
        if rank not in stacks:
            return "does not answer"
        if rank in late:
            return "has not begun: it runs work of another client (%%px, pool.client)"
        place = stacks[rank]["group"]
        line = place["where"] or "code of a library"
        if self._waits(stacks[rank]):
            return f"in {place['operation']} since {place['still_s']:.0f} s ({line})"
        return f"in {place['operation']} ({line})" if place["operation"] else f"at {line}"


def _is_idle(stack: _Stack) -> bool:
    """Tell whether a main thread waits for messages, so that the cell is still on its way."""
    frames = stack["frames"]
    return bool(frames) and frames[-1][2] == "select"


def _hang_s() -> float:
    text = os.environ.get(HANG_VARIABLE, "")
    try:
        return float(text) if text else HANG_S
    except ValueError:
        raise MgpuError(
            f"{HANG_VARIABLE}={text} was set, but it must be a number of seconds."
        ) from None
