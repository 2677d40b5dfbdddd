"""The samples that views show: one watch of the monitor for all of them, while somebody looks."""

import threading
import time

from jupyter_mgpu.monitor import Watch, clamp_interval
from jupyter_mgpu.snapshots import engine_processes, host_readings

REST_AFTER_S = 15.0
"""A bit longer than the pause between two renewals of what is saved."""


class Telemetry:
    """Opens a watch when a view asks for samples, and closes it when none has asked for a while."""

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._used_s = 0.0
        self._interval_s: float | None = None
        self._lock = threading.Lock()

    def watch(self) -> Watch:
        """Return the open watch."""
        with self._lock:
            self._used_s = time.monotonic()
            if self._watch is None:
                self._watch = Watch(engines=engine_processes, hosts=host_readings)
                if self._interval_s is not None:
                    self._watch.interval_s = self._interval_s
            return self._watch

    def rest(self) -> None:
        """Close the watch if no view has needed it for a while."""
        with self._lock:
            if self._watch is not None and time.monotonic() - self._used_s > REST_AFTER_S:
                self._watch.close()
                self._watch = None

    def set_interval(self, seconds: float) -> str:
        """Sample more or less often; say how often now.

        Raises:
            ValueError: If that is no number.
        """
        interval_s, note = clamp_interval(seconds)
        with self._lock:
            self._interval_s = interval_s
            if self._watch is not None:
                self._watch.interval_s = interval_s
        return note or f"A sample every {interval_s:g} s."


telemetry = Telemetry()
"""That of this kernel."""
