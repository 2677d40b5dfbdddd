"""Calls that may block, off the event loop: bounded, and apart for each pool."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.server.requests import RefusedError

MOST_PER_POOL = 4
MOST_IN_ALL = 32

Answer = TypeVar("Answer")


class Calls:
    """Runs calls in threads. A pool that hangs holds up requests for that pool only."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}

    async def run(self, pool_id: str, function: Callable[[], Answer]) -> Answer:
        """Run a call about a pool.

        Raises:
            RefusedError: If too many run already, or no thread can be started.
            BaseException: What the call raises.
        """
        num_running = self._running.get(pool_id, 0)
        if num_running >= MOST_PER_POOL or sum(self._running.values()) >= MOST_IN_ALL:
            raise RefusedError(
                503, f"{num_running} requests for this pool are under way. Try again in a moment."
            )
        try:
            call = asyncio.wrap_future(call_in_thread(function, "mgpu-request"))
        except RuntimeError as error:
            raise RefusedError(
                503,
                f"The server cannot ask the pool: {error}. It is at a limit of its processes or "
                "memory; end some of them, and try again.",
            ) from error
        self._running[pool_id] = num_running + 1
        call.add_done_callback(lambda _: self._ended(pool_id))
        return await asyncio.shield(call)

    def _ended(self, pool_id: str) -> None:
        self._running[pool_id] -= 1
        if not self._running[pool_id]:
            del self._running[pool_id]
