"""Tells when a pool that nobody uses should end, with a warning first."""

import time
from collections.abc import Awaitable, Callable

from jupyter_mgpu.wire import Header

WARN_BEFORE_S = 300.0
RESIDENT_BYTES = 64 * 2**20
RESIDENT_FACTOR = 4
"""A pool that holds data of its user stays this many times longer."""


class IdleClock:
    """Counts from the last use.

    Args:
        timeout_s: Seconds without use; None for never.
        resident_bytes: Asks how much of the user's data the engines hold.
        notify: Tells the client of an event.
    """

    def __init__(
        self,
        timeout_s: float | None,
        resident_bytes: Callable[[], Awaitable[int]],
        notify: Callable[[Header], None],
    ) -> None:
        self._timeout_s = timeout_s
        self._resident_bytes = resident_bytes
        self._notify = notify
        self._warned_for_s: float | None = None

    def set_timeout(self, timeout_s: float | None) -> None:
        """Count to another time from now on; None for never."""
        self._timeout_s = timeout_s

    async def is_over(self, used_s: float, *, is_used: bool) -> bool:
        """Tell whether the pool should end now.

        Args:
            used_s: When it was used last, by the monotonic clock.
            is_used: Whether tasks run or wait now.
        """
        if self._timeout_s is None or is_used:
            return False
        warning_s = min(WARN_BEFORE_S, self._timeout_s / 2)
        idle_s = time.monotonic() - used_s
        if idle_s < self._timeout_s - warning_s:
            return False
        holds_data = await self._resident_bytes() > RESIDENT_BYTES
        limit_s = self._timeout_s * (RESIDENT_FACTOR if holds_data else 1)
        if idle_s >= limit_s - warning_s and self._warned_for_s != used_s:
            self._warned_for_s = used_s
            self._notify({"op": "idle_warning", "seconds": max(0.0, limit_s - idle_s)})
        return idle_s >= limit_s
