"""Keeps large frames for a while after they went to another host, in case they are sent again."""

import asyncio

from jupyter_mgpu import host
from jupyter_mgpu.wire import Frame

KEPT_TIMES = 10
"""What took a second to bring is kept for ten; in memory alone it would not be worth one more."""
MOST_OF_MEMORY = 0.25


class RecentFrames:
    """The frames of one pool. Its methods run in the owner's event loop.

    Not the blocks alone: by its frame the `Store` that has made a block finds it again.

    Args:
        loop: The owner's event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._kept: dict[int, tuple[Frame, asyncio.TimerHandle]] = {}

    def keep(self, frame: Frame, took_s: float) -> None:
        """Keep a frame.

        Args:
            frame: A view of a block.
            took_s: How long it took to bring it.
        """
        key = id(frame)
        self._let_go(key)
        timer = self._loop.call_later(KEPT_TIMES * took_s, self._let_go, key)
        self._kept[key] = (frame, timer)
        most = MOST_OF_MEMORY * host.available_memory_bytes()
        while sum(len(kept) for kept, _ in self._kept.values()) > most:
            self._let_go(next(iter(self._kept)))

    def _let_go(self, key: int) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept[1].cancel()

    def close(self) -> None:
        """Let go of all."""
        for key in list(self._kept):
            self._let_go(key)
