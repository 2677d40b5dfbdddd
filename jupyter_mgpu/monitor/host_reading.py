"""Reads the CPU and the memory of this machine, or of the container's share of it."""

import time

import psutil

from jupyter_mgpu import host
from jupyter_mgpu.monitor.records import HostSample

LIMITS_EVERY_S = 60.0
FIRST_READING = "needs a second reading"
_UNREADABLE = (OSError, ValueError, psutil.Error)


class HostReader:
    """Reads again and again; the CPU's share is that since the reading before."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._is_limited = True
        self._look_again_s = 0.0

    def read(self) -> HostSample:
        """Read once; takes well under a millisecond."""
        reasons: dict[str, str] = {}
        used = total = percent = None
        try:
            self._look_for_limits()
            used, total = host.memory_bytes() if self._is_limited else _machine_memory_bytes()
        except _UNREADABLE as error:
            reasons |= dict.fromkeys(("memory_used_bytes", "memory_total_bytes"), _why(error))
        try:
            percent = self._cpu_percent()
        except _UNREADABLE as error:
            reasons["cpu_percent"] = _why(error)
        else:
            reasons |= {} if percent is not None else {"cpu_percent": FIRST_READING}
        return HostSample(percent, used, total, reasons)

    def _cpu_percent(self) -> float | None:
        before, now = self._before, self._busy_and_possible_s()
        self._before = now
        if before is None or now[1] <= before[1]:
            return None
        share = (now[0] - before[0]) / (now[1] - before[1])
        return round(100 * min(1.0, max(0.0, share)), 1)

    def _busy_and_possible_s(self) -> tuple[float, float]:
        """Read how long cores were busy, and how long they could have been, since some moment."""
        in_container = host.cpu_time_s() if self._is_limited else None
        if in_container is not None:
            used_s, quota = in_container
            return used_s, quota * time.monotonic()
        times = psutil.cpu_times()
        # A guest's time is part of user and nice.
        together = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return together - times.idle - getattr(times, "iowait", 0.0), together

    def _look_for_limits(self) -> None:
        # Finding the groups of this process costs more than all the rest.
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            is_limited = (host.memory_limit_bytes(), host.cpu_quota()) != (None, None)
            if is_limited != self._is_limited:
                self._before = None  # it counted something else
            self._is_limited = is_limited
            self._look_again_s = now_s + LIMITS_EVERY_S


def _machine_memory_bytes() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available), int(memory.total)


def _why(error: Exception) -> str:
    return f"cannot be read here: {error}"
