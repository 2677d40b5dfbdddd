"""Makes one state of everything for all clients, again and again, while somebody watches.

records, owners' sockets --+
sampler thread ------------+-> Observation -> Document -> one dump for all -> Viewers
"""

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.server.document import Document, dump
from jupyter_mgpu.server.kernels import Kernels
from jupyter_mgpu.server.observation import Observation
from jupyter_mgpu.server.viewer import Viewer

FIRST_S = 0.5
"""How long the first state waits for the first samples."""
SNAPSHOT_S = 3.0
SHORTEST_PAUSE_S = 0.1
"""However often clients change their wishes."""
LINGER_S = 15.0
"""How long a request keeps the sampler going, for clients that poll."""
SHOWN_POINTS = 120
SHOWN_FIELDS = ("utilization", "memory_used")


class Hub:
    """All clients of one server. Its methods run in the server's event loop.

    Args:
        kernels: What the server knows of kernels.
        interval_s: Seconds between two states, where a client wants nothing else.
        log: Where troubles are written.
    """

    def __init__(self, kernels: Kernels, interval_s: float, log: Any) -> None:
        self.interval_s = interval_s
        self._kernels = kernels
        self._log = log
        self._viewers: set[Viewer] = set()
        self._document = Document()
        self._observation: Observation | None = None
        self._job: asyncio.Task[None] | None = None
        self._has_state = asyncio.Event()
        self._wake = asyncio.Event()
        self._lingers_until_s = 0.0
        self._fault = ""
        self._is_closed = False

    # --- clients -----------------------------------------------------------------------

    def add(self, viewer: Viewer) -> None:
        """Send a client states from now on."""
        self._viewers.add(viewer)
        self.look_now()

    def remove(self, viewer: Viewer) -> None:
        """Forget a client; with the last one the sampler ends."""
        self._viewers.discard(viewer)
        self.look_now()

    def look_now(self) -> None:
        """Make the next state at once: a client wants something else, or a pool was acted on."""
        if self._job is None and self._is_wanted():
            self._job = asyncio.get_running_loop().create_task(self._run())
        self._wake.set()

    def hurry(self) -> None:
        """Let all clients see at once what has changed."""
        for viewer in self._viewers:
            viewer.hurry()
        self.look_now()

    async def snapshot(self) -> dict[str, Any]:
        """Return the present state, and look on for a while, for a client that polls.

        Raises:
            TimeoutError: If there is none after a few seconds.
        """
        self._lingers_until_s = time.monotonic() + LINGER_S
        self.look_now()
        await asyncio.wait_for(self._has_state.wait(), SNAPSHOT_S)
        return self._snapshot()

    async def history(self, num_points: int) -> dict[str, Any]:
        """Return the last values of each GPU, as far as somebody has watched.

        Raises:
            TimeoutError: If there is nothing after a few seconds.
        """
        await self.snapshot()
        if self._observation is None:
            raise TimeoutError
        gpus = self._observation.gpus
        # In a thread: many values of many GPUs would hold up the server's loop.
        reading = call_in_thread(lambda: gpus.history(num_points), "mgpu-history")
        series = await asyncio.wrap_future(reading)
        return {"at": _now(), **series}

    async def close(self) -> None:
        """End, because the server does."""
        self._is_closed = True
        for viewer in self._viewers:
            viewer.close()
        if self._job is not None:
            self._job.cancel()
            await asyncio.gather(self._job, return_exceptions=True)

    # --- states ------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        if self._is_closed:
            return False
        is_watched = any(not viewer.is_paused for viewer in self._viewers)
        return is_watched or time.monotonic() < self._lingers_until_s

    @property
    def pace_s(self) -> float:
        """Seconds between two states: the shortest that a client wants."""
        wanted = [viewer.interval_s for viewer in self._viewers if not viewer.is_paused]
        return min(wanted, default=self.interval_s)

    async def _run(self) -> None:
        loop, has_sample = asyncio.get_running_loop(), asyncio.Event()

        def on_sample() -> None:
            loop.call_soon_threadsafe(has_sample.set)

        self._observation = Observation(self._kernels, self.pace_s, on_sample)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(has_sample.wait(), FIRST_S)
            while self._is_wanted():
                begun_s = time.monotonic()
                await self._make_state(self._observation)
                await self._pause(begun_s)
        finally:
            self._observation.close()
            self._observation = self._job = None
            self._has_state.clear()

    async def _make_state(self, observation: Observation) -> None:
        self._wake.clear()
        try:
            observation.gpus.set_interval(self.pace_s)
            await observation.fill(self._document)
            self._document.commit()
            self._has_state.set()
            self._publish()
            self._fault = ""
        except Exception as error:  # noqa: BLE001 - the next state may be well again
            if repr(error) != self._fault:  # once, not every second
                self._fault = repr(error)
                self._log.exception("The state of GPUs and pools could not be made.")

    async def _pause(self, begun_s: float) -> None:
        await asyncio.sleep(SHORTEST_PAUSE_S)
        left_s = begun_s + self.pace_s - time.monotonic()
        if left_s > 0 and not self._wake.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left_s)

    def _publish(self) -> None:
        dumps: dict[int | None, str] = {}
        for viewer in self._viewers:
            if viewer.is_due():
                if viewer.seq not in dumps:
                    dumps[viewer.seq] = dump(self._message(viewer.seq))
                viewer.send(dumps[viewer.seq], self._document.seq)

    def _message(self, since: int | None) -> dict[str, Any]:
        """Return what a client needs that has got a state, or none."""
        delta = None if since is None else self._document.since(since)
        if delta is not None:
            return {"type": "delta", "seq": self._document.seq, "at": _now(), **delta}
        history = {}
        if self._observation is not None:
            history = self._observation.gpus.history(SHOWN_POINTS, SHOWN_FIELDS)
        return {**self._snapshot(), "history": history}

    def _snapshot(self) -> dict[str, Any]:
        sections = self._document.sections()
        return {"type": "snapshot", "seq": self._document.seq, "at": _now(), "sections": sections}


def _now() -> float:
    return round(datetime.now(UTC).timestamp(), 3)
