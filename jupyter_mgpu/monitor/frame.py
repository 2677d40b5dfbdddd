"""What one tick has read, and what readers and the history get of it."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu.monitor.gpu_reading import GpusRead
from jupyter_mgpu.monitor.other_hosts import FRESH_S, STALE_S, HostReading, with_hosts
from jupyter_mgpu.monitor.records import EngineSample, GpuSample, HostSample
from jupyter_mgpu.monitor.snapshot import Snapshot

STALE_INTERVALS = 2.5
GPU_METRICS = (
    "utilization_percent",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
)
HOST_METRICS = ("cpu_percent", "memory_used_bytes")
ENGINE_METRICS = ("cpu_percent", "rss_bytes")
NOT_READ_YET = "not read yet"


@dataclass(frozen=True, slots=True)
class Frame:
    """What one tick has read."""

    number: int
    now_s: float
    at: float
    host: HostSample
    gpus: GpusRead
    engines: tuple[EngineSample, ...]
    interval_s: float
    hosts: tuple[HostReading, ...] = ()


def row_of(frame: Frame, before: Frame | None) -> dict[Hashable, float | None]:
    """Return the numbers that this tick has read, for the history."""
    row: dict[Hashable, float | None] = {
        ("host", metric): getattr(frame.host, metric) for metric in HOST_METRICS
    }
    before_s = -1.0 if before is None else before.now_s
    for gpu, read_s in zip(frame.gpus.gpus, frame.gpus.read_s, strict=True):
        for metric in GPU_METRICS if gpu.uuid is not None else ():
            # What was read in an earlier tick is no reading of this one.
            row[gpu.uuid, metric] = getattr(gpu, metric) if read_s > before_s else None
    for engine in frame.engines:
        if engine.started is not None:
            for metric in ENGINE_METRICS:
                row[engine.pid, engine.started, metric] = getattr(engine, metric)
    # They beat on their own, about once a second: one reading may count in two ticks.
    told = [one for one in frame.hosts if one.received_s and frame.now_s - one.received_s < FRESH_S]
    return row | _row_of_hosts(told, frame.now_s) if told else row


def _row_of_hosts(hosts: Iterable[HostReading], now_s: float) -> dict[Hashable, float | None]:
    """Return the numbers that other hosts have just told."""
    row: dict[Hashable, float | None] = {}
    found = with_hosts(Snapshot(0.0, HostSample()), hosts, now_s)
    for host in found.other_hosts:
        row |= {(host.name, "host", metric): getattr(host, metric) for metric in HOST_METRICS}
    for gpu in found.gpus:
        for metric in GPU_METRICS if gpu.uuid is not None and gpu.state == "ok" else ():
            row[gpu.host, gpu.uuid, metric] = getattr(gpu, metric)
    for engine in found.engines:
        for metric in ENGINE_METRICS:
            row[engine.host, engine.pid, engine.started, metric] = getattr(engine, metric)
    return row


def names_of(frame: Frame) -> dict[Hashable, str]:
    """Return what the columns of the history are called, by host and UUID or pid."""
    found = snapshot_of(frame, frame.now_s)
    names: dict[Hashable, str] = {}
    for gpu in found.gpus:
        names[gpu.host, gpu.uuid] = gpu.label
    for one in found.engines:
        names[one.host, one.pid] = f"{one.pool}:{one.rank} (pid {one.pid})"
    return names


def column_name(key: Any, names: Mapping[Hashable, str]) -> str:
    """Name a column: by GPU or engine where it is still there, else by UUID or pid."""
    is_far = len(key) > 2 and isinstance(key[0], str)  # else pid and start of an engine here
    host, of = (key[0], key[1]) if is_far else (None, key[0])
    return f"{f'{host} ' if is_far else ''}{names.get((host, of), of)} {key[-1]}"


def snapshot_of(frame: Frame | None, now_s: float) -> Snapshot:
    """Return what a tick has read, with the age of its values."""
    if frame is None:
        reasons = dict.fromkeys((*HOST_METRICS, "memory_total_bytes"), NOT_READ_YET)
        return Snapshot(datetime.now(UTC).timestamp(), HostSample(reasons=reasons))
    own = _own_snapshot(frame, now_s)
    return with_hosts(own, frame.hosts, now_s) if frame.hosts else own


def _own_snapshot(frame: Frame, now_s: float) -> Snapshot:
    limit_s = max(STALE_S, STALE_INTERVALS * frame.interval_s)
    found = zip(frame.gpus.gpus, frame.gpus.read_s, strict=True)
    return Snapshot(
        at=frame.at,
        host=frame.host,
        gpus=tuple(_aged(gpu, now_s - read_s, limit_s) for gpu, read_s in found),
        engines=frame.engines,
        trouble=frame.gpus.trouble,
        driver_version=frame.gpus.driver_version,
    )


def _aged(gpu: GpuSample, age_s: float, limit_s: float) -> GpuSample:
    if age_s == float("inf"):
        return gpu
    is_stale = age_s > limit_s and gpu.state in ("ok", "divided")
    return replace(gpu, age_s=round(age_s, 1), state="stale" if is_stale else gpu.state)
