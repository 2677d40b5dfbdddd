"""What a pool's owner knows of the hosts of its far engines: a reading a second, while it is asked.

One engine of each host is asked, through its guard; when it dies another one of that host is.
"""

import json
import math
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.transport.far_process import FarProcess
from jupyter_mgpu.wire import Frame

REST_S = 5.0
"""So long after the last question the hosts are not asked any more."""
MOST_BYTES = 2**20
"""No reading is larger than this."""


@dataclass(slots=True)
class _Host:
    """One host.

    Attributes:
        engine: The one whose guard is asked.
        trouble: Why there is no reading.
    """

    engine: EngineRecord
    reading: dict[str, Any] | None = None
    received_s: float = -math.inf
    trouble: str | None = None


class FarHosts:
    """Asks for the readings of other hosts. `tick` runs in the owner's event loop.

    Args:
        pool: The pool's name.
        engines: The pool's engines by rank.
        wake: Has `tick` called soon, from any thread.
    """

    def __init__(
        self, pool: str, engines: Mapping[int, EngineRecord], wake: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._engines = engines
        self._wake = wake
        self._hosts: dict[str, _Host] = {}
        self._asked_s = self._since_s = -math.inf

    def look(self) -> list[dict[str, Any]]:
        """Return what is known of each host, and have them read on for some seconds.

        Any thread may call, and it never waits. A first look knows nothing yet.

        Returns:
            One dict per host: its name, `reading` with its `age_s`, `is_lost`, `trouble`, and
            `watched_s`, how long it has been asked for.
        """
        now_s = time.monotonic()
        was_resting = now_s - self._asked_s > REST_S
        self._asked_s = now_s
        if was_resting:
            self._since_s = now_s
            self._hosts = {}  # nobody has asked since: what is there is old
            self._wake()
        return [self._describe(name, engines, now_s) for name, engines in self._by_host().items()]

    def _describe(self, name: str, engines: list[EngineRecord], now_s: float) -> dict[str, Any]:
        host = self._hosts.get(name)
        reading = None if host is None else host.reading
        is_starting = any(e.state is EngineState.STARTING and not e.starts for e in engines)
        return {
            "name": name,
            "reading": reading,
            "age_s": None if host is None or reading is None else now_s - host.received_s,
            "is_lost": not is_starting and not any(engine.is_alive for engine in engines),
            "trouble": None if host is None else host.trouble,
            "watched_s": now_s - self._since_s,
        }

    def _by_host(self) -> dict[str, list[EngineRecord]]:
        """List the far engines of each host, the lowest rank first."""
        found: dict[str, list[EngineRecord]] = {}
        for _, engine in sorted(self._engines.items()):
            if engine.host:  # a scheduler's is known only when its guard has said hello
                found.setdefault(engine.host, []).append(engine)
        return found

    def tick(self) -> None:
        """Ask each host to read on; call it every second."""
        if time.monotonic() - self._asked_s > REST_S:
            return
        for name, engines in self._by_host().items():
            alive = [engine for engine in engines if engine.is_alive]
            if not alive:
                continue
            host = self._hosts.setdefault(name, _Host(alive[0]))
            if host.engine not in alive:
                host.engine = alive[0]
            process = host.engine.process
            if isinstance(process, FarProcess):
                pids = [(e.rank, e.process.pid) for e in alive if e.process and e.process.pid]
                process.sample(self._pool, pids, partial(self._take, host))

    def _take(self, host: _Host, frame: Frame | None, why: str | None) -> None:
        if frame is None:
            host.trouble = why
            return
        try:
            reading = json.loads(zlib.decompressobj().decompress(frame, MOST_BYTES))
        except (zlib.error, ValueError) as error:
            host.trouble = f"its reading cannot be read: {error}"
        else:
            host.received_s, host.reading, host.trouble = time.monotonic(), reading, None
