"""The one thread of this process that takes samples, while somebody watches.

    tick: host, engines -> the driver's answer, within 0.25 s or at the next tick -> frame, history
    reader: the last frame, with the age of its values by the clock; never waits for a tick

The driver may block for ever: then the frame keeps the last values, which grow stale.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from jupyter_mgpu.monitor.engine_reading import EngineReader
from jupyter_mgpu.monitor.frame import Frame, column_name, names_of, row_of, snapshot_of
from jupyter_mgpu.monitor.gpu_reading import GpuReader
from jupyter_mgpu.monitor.guard import Guard
from jupyter_mgpu.monitor.history import History, Series
from jupyter_mgpu.monitor.history_table import HistoryTable
from jupyter_mgpu.monitor.host_reading import HostReader
from jupyter_mgpu.monitor.interval import DEFAULT_S
from jupyter_mgpu.monitor.other_hosts import HostReading
from jupyter_mgpu.monitor.records import EngineProcess
from jupyter_mgpu.monitor.snapshot import Snapshot

PATIENCE_S = 0.25
FIRST_CPU_READING_S = 0.1


@dataclass(slots=True)
class Subscription:
    """What one watch wants.

    Attributes:
        engines: Gives the engines to read; called in the sampler's thread.
        hosts: Gives there what is known of other hosts.
        on_sample: Called there with each snapshot.
        is_over: Set by the watch when it is closed or forgotten.
    """

    interval_s: float
    engines: Callable[[], Iterable[EngineProcess]] | None = None
    on_sample: Callable[[Snapshot], None] | None = None
    hosts: Callable[[], Iterable[HostReading]] | None = None
    is_over: bool = False
    told_s: float = -math.inf
    listing: Guard = field(default_factory=lambda: Guard("What to watch cannot be listed."))
    telling: Guard = field(default_factory=lambda: Guard("A view of the samples failed."))

    def end(self) -> None:
        """Want nothing more. Takes no lock: it may run in the middle of anything."""
        self.is_over = True


@dataclass(frozen=True, slots=True)
class _Readers:
    """What remembers something from one tick to the next."""

    gpus: GpuReader = field(default_factory=GpuReader)
    host: HostReader = field(default_factory=HostReader)
    engines: EngineReader = field(default_factory=EngineReader)


class Sampler:
    """Takes samples while there are subscriptions. There is one per process, in `monitor`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a forked child has to: it has neither the thread nor its watches."""
        self._lock = threading.RLock()
        self._published = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._subscriptions: list[Subscription] = []
        self._thread: threading.Thread | None = None
        self._frame: Frame | None = None
        self._history = History()
        self._readers: _Readers | None = None

    def subscribe(self, subscription: Subscription) -> None:
        """Sample for a watch, until it is over."""
        with self._lock:
            self._subscriptions.append(subscription)
            if self._thread is None:
                self._readers = self._readers or _Readers()
                self._thread = threading.Thread(
                    target=self._run, args=(self._readers,), name="mgpu-monitor", daemon=True
                )
                self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Let the thread look again at what is wanted."""
        self._wake.set()

    @property
    def is_running(self) -> bool:
        """Whether the thread takes samples now."""
        return self._thread is not None

    @property
    def interval_s(self) -> float:
        """Seconds between two samples: the shortest that a watch wants."""
        with self._lock:
            wanted = [one.interval_s for one in self._subscriptions if not one.is_over]
        return min(wanted, default=DEFAULT_S)

    def snapshot(self) -> Snapshot:
        """Return the last samples with their age; never waits."""
        return snapshot_of(self._frame, time.monotonic())

    def wait_for(self, is_enough: Callable[[Frame], bool], timeout: float) -> bool:
        """Wait until a frame is enough, or the time is over; in the sampler's own thread do not."""
        timeout = 0 if threading.current_thread() is self._thread else timeout
        with self._published:
            return self._published.wait_for(
                lambda: self._frame is not None and is_enough(self._frame), timeout
            )

    def series(self, key: Hashable, num_points: int) -> Series:
        """Return the last values of one number, one per interval, up to now."""
        step_s, now_s = self.interval_s, time.monotonic()
        with self._lock:
            frame = self._frame
            # A tick waits for the driver before others see what it has read.
            is_late = frame is not None and now_s - frame.now_s > 1.5 * step_s + PATIENCE_S
            end_s = now_s if is_late else None
            return self._history.series(key, step_s=step_s, num_points=num_points, now_s=end_s)

    def history(self) -> HistoryTable:
        """Return all that is remembered."""
        with self._lock:
            keys, rows = self._history.rows()
            frame = self._frame
        names = {} if frame is None else names_of(frame)
        # The clock of the ticks counts from some moment of the past.
        since = datetime.now(UTC).timestamp() - time.monotonic()
        return HistoryTable(
            columns=("at", *(column_name(key, names) for key in keys)),
            rows=tuple((round(since + (row[0] or 0), 3), *row[1:]) for row in rows),
        )

    def started(self, pid: int, host: str | None = None) -> float | None:
        """Return when an engine's process started, in epoch seconds; None if it is not watched."""
        frame = self._frame
        if frame is None:
            return None
        engines = list(frame.engines) if host is None else []
        for reading in frame.hosts:
            if reading.name == host and reading.snapshot is not None:
                engines += reading.snapshot.engines
        return next((engine.started for engine in engines if engine.pid == pid), None)

    def _run(self, readers: "_Readers") -> None:
        guarded = Guard("A sample could not be taken.")
        with guarded:
            readers.gpus.begin(time.monotonic())
            # A share of the CPU is that between two readings.
            readers.host.read()
            readers.engines.read(self._wanted_engines())
        threading.Event().wait(FIRST_CPU_READING_S)
        last_s = -1.0
        while self._is_wanted():
            pause_s = self._pause_s()
            wait_s = last_s + pause_s - time.monotonic()
            if last_s >= 0 and wait_s > 0:
                self._wake.wait(wait_s)
                self._wake.clear()
                continue
            late_s = -wait_s
            last_s = time.monotonic()
            if 0 < late_s < pause_s / 2:
                last_s -= late_s  # on the beat again, so that lateness does not add up
            with guarded:
                self._tick(readers)

    def _pause_s(self) -> float:
        frame = self._frame
        if frame is not None and frame.gpus.is_known:
            return self.interval_s
        # The driver may need seconds for its start; who looks once a minute does not wait for one.
        return min(self.interval_s, DEFAULT_S)

    def _is_wanted(self) -> bool:
        with self._lock:
            self._subscriptions = [one for one in self._subscriptions if not one.is_over]
            if not self._subscriptions:
                self._thread = None
            return bool(self._subscriptions)

    def _wanted_engines(self) -> list[EngineProcess]:
        wanted: dict[EngineProcess, None] = {}
        for subscription in list(self._subscriptions):
            if subscription.engines is None or subscription.is_over:
                continue
            with subscription.listing:
                wanted.update(dict.fromkeys(subscription.engines()))
        return list(wanted)

    def _told_hosts(self) -> tuple[HostReading, ...]:
        told: list[HostReading] = []
        for subscription in list(self._subscriptions):
            if subscription.hosts is not None and not subscription.is_over:
                with subscription.listing:
                    told += subscription.hosts()
        return tuple(told)

    def _tick(self, readers: "_Readers") -> None:
        now_s = time.monotonic()
        host = readers.host.read()
        engines = readers.engines.read(self._wanted_engines())
        # Last: two threads at once would only wait for each other in the interpreter.
        readers.gpus.begin(now_s)
        gpus = readers.gpus.finish(now_s, PATIENCE_S)
        before = self._frame
        frame = Frame(
            number=0 if before is None else before.number + 1,
            now_s=now_s,
            at=datetime.now(UTC).timestamp(),
            host=host,
            gpus=gpus,
            engines=engines,
            interval_s=self.interval_s,
            hosts=self._told_hosts(),
        )
        with self._published:
            self._history.add(now_s, row_of(frame, before))
            self._frame = frame
            self._published.notify_all()
        self._tell(frame)

    def _tell(self, frame: Frame) -> None:
        snapshot: Snapshot | None = None
        for one in list(self._subscriptions):
            # Half an interval early counts as in time: ticks come on the beat of the fastest.
            is_due = frame.now_s - one.told_s >= one.interval_s - frame.interval_s / 2
            if one.is_over or one.on_sample is None or not is_due:
                continue
            # Until the driver has answered, what it answers is told at once.
            one.told_s = frame.now_s if frame.gpus.is_known else -math.inf
            snapshot = snapshot or snapshot_of(frame, time.monotonic())
            with one.telling:
                one.on_sample(snapshot)


sampler = Sampler()
"""The one of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=sampler.forget)
