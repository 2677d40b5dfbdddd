"""What a view, a server or a line of a terminal holds while it wants samples."""

import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Self

from jupyter_mgpu.monitor.frame import Frame
from jupyter_mgpu.monitor.history import Series
from jupyter_mgpu.monitor.history_table import HistoryTable
from jupyter_mgpu.monitor.host_reading import FIRST_READING
from jupyter_mgpu.monitor.interval import DEFAULT_S, check_interval
from jupyter_mgpu.monitor.other_hosts import HostReading, with_hosts
from jupyter_mgpu.monitor.records import EngineProcess
from jupyter_mgpu.monitor.sampler import Subscription, sampler
from jupyter_mgpu.monitor.snapshot import Snapshot

NUM_POINTS = 120
ANSWER_TIMEOUT_S = 13.0
"""For one snapshot: the driver's own start may take ten seconds, then a call two."""


class Watch:
    """Keeps the one sampler of this process going; close it, or use it in a with-block.

    Many watches cost one sampler, which ends with the last of them.

    Args:
        interval_s: Seconds between two samples, 0.5 to 60. The shortest of all watches counts.
        engines: Gives the engines whose CPU and memory are wanted. Called once per sample, in the
            sampler's thread: it must not wait for anything.
        on_sample: Called there with each snapshot, for the same rule; an error of it is logged.
        hosts: Gives there what is known of other hosts, for the same rule.

    Raises:
        IntervalError: If the interval is none of 0.5 to 60 s.
    """

    def __init__(
        self,
        interval_s: float = DEFAULT_S,
        *,
        engines: Callable[[], Iterable[EngineProcess]] | None = None,
        on_sample: Callable[[Snapshot], None] | None = None,
        hosts: Callable[[], Iterable[HostReading]] | None = None,
    ) -> None:
        self._wish = Subscription(check_interval(interval_s), engines, on_sample, hosts)
        weakref.finalize(self, self._wish.end).atexit = False
        sampler.subscribe(self._wish)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching. Can be called twice."""
        self._wish.end()
        sampler.wake()

    @property
    def interval_s(self) -> float:
        """How often this watch wants a sample, in seconds; can be set.

        Raises:
            IntervalError: If set to none of 0.5 to 60 s.
        """
        return self._wish.interval_s

    @interval_s.setter
    def interval_s(self, seconds: float) -> None:
        self._wish.interval_s = check_interval(seconds)
        sampler.wake()

    def snapshot(self) -> Snapshot:
        """Return the last samples with their age; never waits, whatever the driver does."""
        return sampler.snapshot()

    def history(self) -> HistoryTable:
        """Return the last ten minutes as a table, for a file or a data frame."""
        return sampler.history()

    def series(
        self, of: str | int, metric: str, num_points: int = NUM_POINTS, host: str | None = None
    ) -> Series:
        """Return the last values of one number, one per interval, gaps as None.

        Args:
            of: The UUID of a GPU, the pid of an engine, or "host".
            metric: The name of the field, such as "utilization_percent" or "cpu_percent".
            num_points: At most so many values.
            host: Where that is; None for this machine.
        """
        where = () if host is None else (host,)
        if isinstance(of, str):
            return sampler.series((*where, of, metric), num_points)
        return sampler.series((*where, of, sampler.started(of, host), metric), num_points)


def take_snapshot(
    engines: Iterable[EngineProcess] = (), hosts: Callable[[], Iterable[HostReading]] | None = None
) -> Snapshot:
    """Take one sample of everything, or use one of the last second of a sampler that runs.

    Takes a fifth of a second; where the driver hangs two, at its own start up to ten.

    Args:
        engines: The engines of this machine whose CPU and memory are wanted.
        hosts: Gives what is known of other hosts, at the end.
    """
    wanted = tuple(engines)
    pids = {engine.pid for engine in wanted}
    oldest_s = time.monotonic() - (DEFAULT_S if sampler.is_running else 0.0)

    def is_enough(frame: Frame) -> bool:
        read = {one.pid for one in frame.engines if FIRST_READING not in one.reasons.values()}
        return frame.now_s >= oldest_s and frame.gpus.is_known and pids <= read

    if not sampler.wait_for(is_enough, timeout=0):
        with Watch(engines=lambda: wanted):
            sampler.wait_for(is_enough, timeout=ANSWER_TIMEOUT_S)
    snapshot = sampler.snapshot()
    own = tuple(one for one in snapshot.engines if one.host is None and one.pid in pids)
    told = [] if hosts is None else list(hosts())
    return with_hosts(replace(snapshot, engines=own), told, time.monotonic())
