"""One client of the stream, as the hub sees it."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError

SLACK = 0.1
"""A state that comes so much of an interval early counts as in time."""


class Viewer:
    """Gets the newest state at its own pace. States that it has no time for are left out.

    Args:
        write: Writes one message; done when the client's connection has taken it.
        interval_s: Seconds between two states.
        close: Closes the connection, because the server ends.

    Attributes:
        seq: The state that it got last, None before the first.
        is_paused: It wants nothing now, and keeps no sampler going.
    """

    def __init__(
        self,
        write: Callable[[str], Awaitable[None]],
        interval_s: float,
        close: Callable[[], None],
    ) -> None:
        self.interval_s = interval_s
        self.close = close
        self.is_paused = False
        self.seq: int | None = None
        self._write = write
        self._writing: asyncio.Task[None] | None = None
        self._due_s = 0.0

    def is_due(self) -> bool:
        """Tell whether it wants a state now, and can take it."""
        is_busy = self._writing is not None and not self._writing.done()
        return not self.is_paused and not is_busy and time.monotonic() >= self._due_s

    def hurry(self) -> None:
        """Let it get the next state, whatever its pace."""
        self._due_s = 0.0

    def send(self, text: str, seq: int) -> None:
        """Send a state; returns at once."""
        self.seq = seq
        self._due_s = time.monotonic() + self.interval_s * (1 - SLACK)
        self._writing = asyncio.get_running_loop().create_task(self._send(text))

    async def _send(self, text: str) -> None:
        with contextlib.suppress(WebSocketClosedError, StreamClosedError):
            await self._write(text)  # who went away is taken out when its socket says so
