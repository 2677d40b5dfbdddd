"""Ends a pool that nobody uses, with a warning first, and never one that works."""

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_mgpu.owner.owner import Owner

WARN_BEFORE_S = 300.0
RESIDENT_BYTES = 64 * 2**20
RESIDENT_FACTOR = 4
"""A pool that holds data of its user stays this many times longer."""


class IdleClock:
    """Counts from the last use.

    Args:
        owner: Whose pool it is.
        timeout_s: Seconds without use; None for never.
    """

    def __init__(self, owner: "Owner", timeout_s: float | None) -> None:
        self._owner = owner
        self._timeout_s = timeout_s
        self._used_s = time.monotonic()
        self._is_warned = False

    def touch(self) -> None:
        """Note that the pool is in use."""
        self._used_s = time.monotonic()
        self._is_warned = False

    async def check(self) -> None:
        """Warn, or end the pool, when it is time."""
        if self._timeout_s is None:
            return
        if self._owner.tasks:
            self.touch()
            return
        idle_s = time.monotonic() - self._used_s
        warn_s = max(self._timeout_s - WARN_BEFORE_S, self._timeout_s / 2)
        if idle_s < warn_s:
            return
        limit_s = self._timeout_s * (RESIDENT_FACTOR if await self._holds_data() else 1)
        if idle_s >= limit_s:
            self._owner.stop(reason="idle")
        elif not self._is_warned and idle_s >= limit_s - (self._timeout_s - warn_s):
            self._is_warned = True
            self._owner.notify({"op": "idle_warning", "seconds": limit_s - idle_s})

    async def _holds_data(self) -> bool:
        asked = [
            asyncio.wrap_future(self._owner.rpc(rank, "resident_bytes"))
            for rank, engine in self._owner.engines.items()
            if engine.is_alive
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return any(
            isinstance(answer, tuple) and answer[0] > RESIDENT_BYTES for answer in answers
        )
