"""Samples of GPUs, host and engines: one thread per process, while somebody watches.

Watch -> sampler (one thread) -> nvml | psutil | leases -> Snapshot, Series
other host: reporter (a process beside an engine) -> its Snapshot -> HostReading -> Snapshot
"""

from jupyter_mgpu.monitor.history import Series
from jupyter_mgpu.monitor.history_table import HistoryTable
from jupyter_mgpu.monitor.interval import (
    DEFAULT_S,
    LONGEST_S,
    SHORTEST_S,
    check_interval,
    clamp_interval,
)
from jupyter_mgpu.monitor.other_hosts import FRESH_S, HostReading, with_hosts
from jupyter_mgpu.monitor.records import (
    EngineProcess,
    EngineSample,
    GpuSample,
    GpuUse,
    HostSample,
)
from jupyter_mgpu.monitor.snapshot import Snapshot
from jupyter_mgpu.monitor.watch import Watch, take_snapshot

__all__ = [
    "DEFAULT_S",
    "FRESH_S",
    "LONGEST_S",
    "SHORTEST_S",
    "EngineProcess",
    "EngineSample",
    "GpuSample",
    "GpuUse",
    "HistoryTable",
    "HostReading",
    "HostSample",
    "Series",
    "Snapshot",
    "Watch",
    "check_interval",
    "clamp_interval",
    "take_snapshot",
    "with_hosts",
]
