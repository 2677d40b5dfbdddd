"""One engine's process on another host, as its owner sees it: through the words of its guard."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jupyter_mgpu import cuda
from jupyter_mgpu.on_engine import lifeline
from jupyter_mgpu.transport.placement import Launched
from jupyter_mgpu.wire import Frame, Header

OnReading = Callable[[Frame | None, str | None], None]
"""Takes a compressed reading of a host, or why there is none."""
EXPLAIN_S = 5.0
"""So long a launcher may take to say why it has ended an engine."""
KILLED_TICKS = 4
"""So many ticks after a kill that nobody confirms, the launcher is asked to do it."""


class FarProcess:
    """An engine of another host.

    Args:
        host: The host's name as the placement knows it.
        log: Where what it prints is written to on this machine.
        tell: Sends its guard a message.
        loop: The owner's event loop.
    """

    def __init__(
        self, host: str, log: Path, tell: Callable[[Header], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.pid: int | None = None
        self.host: str | None = host
        self.local_rank: int | None = None
        self.rss_bytes: int | None = None
        self.lost: str | None = None
        self.last_words = ""
        self.way: str | None = None
        self.launched: Launched | None = None
        self._log = log
        self._tell = tell
        self._loop = loop
        self._code: int | None = None
        self._is_alive = True
        self._missed = 0
        self._ticks_killed: int | None = None
        self._on_exit: Callable[[], None] | None = None
        self.begun: asyncio.Future[Header | None] = loop.create_future()
        self._explaining: asyncio.Task[None] | None = None
        self._gpus: asyncio.Future[cuda.Answer] = loop.create_future()
        self._on_reading: OnReading = lambda _frame, _why: None

    def watch(self, on_exit: Callable[[], None]) -> None:  # noqa: D102 - as in EngineProcess
        self._on_exit = on_exit
        if not self._is_alive:
            self._loop.call_soon(self._report)

    def unwatch(self) -> None:  # noqa: D102 - as in EngineProcess
        self._on_exit = None

    def is_alive(self) -> bool:  # noqa: D102 - as in EngineProcess
        return self._is_alive

    def kill(self) -> None:  # noqa: D102 - as in EngineProcess
        if self._is_alive and self._ticks_killed is None:
            self._ticks_killed = 0
            if self.begun.done():
                self._tell({"op": "kill"})
            elif self.launched is not None:
                self.launched.kill()

    async def ready(self) -> None:  # noqa: D102 - as in EngineProcess
        await asyncio.shield(self.begun)

    async def visible_gpus(self) -> cuda.Answer:  # noqa: D102 - as in EngineProcess
        return await asyncio.shield(self._gpus)

    def exit_code(self) -> int | None:  # noqa: D102 - as in EngineProcess
        return self._code

    def sample(self, pool: str, engines: Sequence[tuple[int, int]], on_reading: OnReading) -> None:
        """Have its host read for some seconds.

        Args:
            pool: The pool's name.
            engines: The rank and the pid there of each engine that is to be read as well.
            on_reading: Called with each reading, or with None and why there is none.
        """
        self._on_reading = on_reading
        self._tell({"op": "sample", "pool": pool, "engines": engines})

    def close(self) -> None:  # noqa: D102 - as in EngineProcess
        self._is_alive = False
        self._on_exit = None

    # --- what its guard says -----------------------------------------------------------

    def heard(self, header: Header, frames: Sequence[Frame]) -> None:
        """Take a message of its guard."""
        self._missed = 0
        operation: Any = header["op"]
        if operation == "hello":
            self.pid = int(header["pid"])
            self.host = self.host or str(header["host"])
            self.local_rank = int(header["local_rank"])
            self.way = header["way"]
            if not self.begun.done():
                self.begun.set_result(header)
            if self._ticks_killed is not None:
                self._tell({"op": "kill"})
        elif operation == "beat":
            self.rss_bytes = header["rss_bytes"]
        elif operation == "reading":
            self._on_reading(frames[0], None)
        elif operation == "unread":
            self._on_reading(None, header["why"])
        elif operation == "log":
            with contextlib.suppress(OSError), self._log.open("ab") as file:
                file.writelines(frames)
        elif operation == "proof":
            uuids = header["uuids"]
            self._answer(
                cuda.Answer(
                    None if uuids is None else tuple(uuids), header["why"], header["labels"]
                )
            )
        elif operation == "refused":
            self.lost = f"was not started: {header['message']}"
        elif operation == "failed":
            host = self.host or "its host"
            self.lost = f"was ended, since its guard on {host} has failed ({header['why']})"
            self.last_words = header["words"]
            self._end()
        elif operation == "ended":
            self._code = header["code"]
            self.last_words = header["words"]
            if header["is_cut_off"]:
                self.lost = (
                    f"was ended, since {self.host} had not heard of this machine for "
                    f"{lifeline.PONG_S + lifeline.AWAY_S:g} s (it slept, or the kernel was stopped)"
                )
                self._end()
            elif header["asked"] and self._ticks_killed is None:
                self._explain_and_end(None)
            else:
                self._end()

    def tick(self) -> None:
        """Count one more beat that may be missed."""
        if not self._is_alive:
            return
        if self._ticks_killed is not None:
            self._ticks_killed += 1
            if self._ticks_killed == KILLED_TICKS and self.launched is not None:
                self.launched.kill()
        if self.begun.done():
            self._missed += 1
            if self._missed > lifeline.MISSED_BEATS:
                silent_s = lifeline.MISSED_BEATS * lifeline.BEAT_S
                self.lost = (
                    f"was lost: {self.host} has not been heard of for {silent_s:g} s (it is down, "
                    "or the network to it is cut; when it answers again it gets a new engine)"
                )
                self._explain_and_end(self.host)

    def _explain_and_end(self, silent: str | None) -> None:
        if self._explaining is None:
            self._explaining = self._loop.create_task(self._explain(silent))

    async def _explain(self, silent: str | None) -> None:
        """Ask the launcher what has happened: a job may have been cancelled, or out of time."""
        if self.launched is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXPLAIN_S):
                    silent_s = lifeline.MISSED_BEATS * lifeline.BEAT_S
                    self.lost = await self.launched.explain(silent, silent_s) or self.lost
        self._end()

    def _end(self) -> None:
        if self._is_alive:
            self._is_alive = False
            if not self.begun.done():
                self.begun.set_result(None)
            self._answer(cuda.Answer(None, "the engine has ended"))
            self._report()

    def _answer(self, answer: cuda.Answer) -> None:
        if not self._gpus.done():
            self._gpus.set_result(answer)

    def _report(self) -> None:
        if self._on_exit is not None:
            self._on_exit()
