"""Reads the CPU time and the memory of engines, and of nobody who got their pid later."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from jupyter_mgpu.monitor.host_reading import FIRST_READING
from jupyter_mgpu.monitor.records import EngineProcess, EngineSample

ENDED = "the process has ended"
_FIELDS = ("cpu_percent", "rss_bytes")


class EngineReader:
    """Reads again and again; a pid stays bound to the process that bore it first."""

    def __init__(self) -> None:
        self._known: dict[EngineProcess, _Known] = {}

    def read(self, engines: Iterable[EngineProcess]) -> tuple[EngineSample, ...]:
        """Read each engine once."""
        wanted = dict.fromkeys(engines)
        for engine in [engine for engine in self._known if engine not in wanted]:
            del self._known[engine]
        return tuple(self._read(engine) for engine in wanted)

    def _read(self, engine: EngineProcess) -> EngineSample:
        known = self._known.get(engine)
        try:
            if known is None:
                process = psutil.Process(engine.pid)
                known = self._known[engine] = _Known(process, process.create_time())
            return known.read(engine)
        except psutil.Error as error:
            reason = "no permission" if isinstance(error, psutil.AccessDenied) else ENDED
            return EngineSample(
                engine.pid,
                engine.pool,
                engine.rank,
                started=known.started if known else None,
                reasons=dict.fromkeys(_FIELDS, reason),
            )


@dataclass(slots=True)
class _Known:
    process: psutil.Process
    started: float
    before: tuple[float, float] | None = None

    def read(self, engine: EngineProcess) -> EngineSample:
        if not self.process.is_running():  # compares the start time as well
            raise psutil.NoSuchProcess(engine.pid)
        with self.process.oneshot():
            if self.process.status() == psutil.STATUS_ZOMBIE:
                raise psutil.ZombieProcess(engine.pid)
            times, memory = self.process.cpu_times(), self.process.memory_info()
        now = time.monotonic(), times.user + times.system
        before, self.before = self.before, now
        percent = None
        if before is not None and now[0] > before[0]:
            percent = round(100 * max(0.0, now[1] - before[1]) / (now[0] - before[0]), 1)
        return EngineSample(
            engine.pid,
            engine.pool,
            engine.rank,
            started=self.started,
            cpu_percent=percent,
            rss_bytes=memory.rss,
            reasons={} if percent is not None else {"cpu_percent": FIRST_READING},
        )
