"""One pool's owner, asked again and again over one connection."""

import asyncio
import contextlib
import json
import time

from jupyter_mgpu.control import SILENT_S, Answer, FoundPool
from jupyter_mgpu.monitor import HostReading

MOST_BYTES = 8 * 2**20
"""An answer describes a few hundred tasks at most."""
QUESTION = b'{"op": "look"}\n'


class PoolLink:
    """Asks one owner how its pool is. While an answer is due nothing more is asked.

    So a hung owner costs one waiting coroutine, and is seen at once when it goes on.

    Attributes:
        pool: What the pool's record told last.
        answer: Its last answer, None before the first.
        hosts: What it knew then of other hosts.
        is_understood: False where it answers in other words, as another version may.
    """

    def __init__(self, pool: FoundPool) -> None:
        self.pool = pool
        self.answer: Answer | None = None
        self.hosts: list[HostReading] = []
        self.is_understood = True
        self._asking: asyncio.Task[None] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._unanswered_since_s: float | None = None

    @property
    def silent_s(self) -> float | None:
        """How long it has been silent, None while it answers."""
        since_s = self._unanswered_since_s
        silent_s = 0.0 if since_s is None else time.monotonic() - since_s
        return silent_s if silent_s >= SILENT_S else None

    def ask(self) -> "asyncio.Task[None]":
        """Ask now, unless an answer is due; the task is done when it has come or failed."""
        if self._asking is None or self._asking.done():
            self._unanswered_since_s = self._unanswered_since_s or time.monotonic()
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return self._asking

    async def _ask(self) -> None:
        try:
            if self._streams is None:
                path = str(self.pool.socket)
                self._streams = await asyncio.open_unix_connection(path, limit=MOST_BYTES)
            reader, writer = self._streams
            writer.write(QUESTION)
            await writer.drain()
            reply = json.loads(await reader.readline())
            self.answer = reply.get("value")
            self.is_understood = self.answer is not None
            self._unanswered_since_s = None
            told = self.answer.get("hosts", ()) if self.answer else ()
            self.hosts = [HostReading.from_dict(host) for host in told]
        except (OSError, ValueError, AttributeError, RecursionError, KeyError, TypeError):
            self._drop_connection()  # it has ended

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
        self._drop_connection()

    def _drop_connection(self) -> None:
        if self._streams is not None:
            with contextlib.suppress(OSError):
                self._streams[1].close()
            self._streams = None
