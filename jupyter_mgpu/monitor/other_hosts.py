"""Readings of other hosts: how they travel, how they age, how they join those of this machine.

    sampler there -> Snapshot as JSON -> pool's owner -> `HostReading` -> `with_hosts`

Their age is counted by the clock of the receiver: clocks of two hosts are never compared.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

from jupyter_mgpu.monitor.records import EngineSample, GpuSample, GpuUse, HostSample, HostState
from jupyter_mgpu.monitor.snapshot import Snapshot

STALE_S = 3.0
"""Three readings were missed."""
FRESH_S = 1.5
"""A reading of this second, or of the one before with its delay."""
_HOST_FIELDS = ("cpu_percent", "memory_used_bytes", "memory_total_bytes")
_ENGINE_FIELDS = ("cpu_percent", "rss_bytes")

Record = TypeVar("Record", GpuSample, GpuUse, HostSample, EngineSample)


@dataclass(frozen=True, slots=True)
class HostReading:
    """What is known of another host now.

    Attributes:
        name: The host's.
        received_s: When its last reading came, on this process's monotonic clock; None for never.
        snapshot: What the sampler there has read last.
        is_lost: No engine runs there that could report.
        trouble: Why there is no reading.
    """

    name: str
    received_s: float | None = None
    snapshot: Snapshot | None = None
    is_lost: bool = False
    trouble: str | None = None

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """Return what a pool's owner tells of a host, as of now."""
        name, age_s, trouble = told["name"], told["age_s"], told["trouble"]
        snapshot = None
        if told["reading"] is not None:
            try:
                snapshot = _make_snapshot(told["reading"])
            except (KeyError, TypeError, AttributeError):
                trouble = f"{name} has another version of jupyter_mgpu, whose readings differ"
        received_s = None if snapshot is None else time.monotonic() - age_s
        return cls(name, received_s, snapshot, told["is_lost"], trouble)


def with_hosts(own: Snapshot, readings: Iterable[HostReading], now_s: float) -> Snapshot:
    """Return this machine's snapshot with what is known of other hosts behind it.

    Args:
        own: What is known of this machine; of other hosts in it nothing is kept.
        readings: One or several per host, as several pools may run there.
        now_s: The time, on this process's monotonic clock.
    """
    by_host: dict[str, list[HostReading]] = {}
    for reading in readings:
        by_host.setdefault(reading.name, []).append(reading)
    parts = [_describe(found, now_s) for found in by_host.values()]
    return replace(
        own,
        gpus=(
            *(gpu for gpu in own.gpus if gpu.host is None),
            *(g for part in parts for g in part.gpus),
        ),
        engines=(
            *(one for one in own.engines if one.host is None),
            *(one for part in parts for one in part.engines),
        ),
        other_hosts=tuple(part.host for part in parts),
    )


def _describe(readings: Sequence[HostReading], now_s: float) -> Snapshot:
    """Describe one host, after the newest reading of it."""
    newest = max(readings, key=lambda one: one.received_s or float("-inf"))
    age_s = None if newest.received_s is None else max(0.0, now_s - newest.received_s)
    is_lost = all(one.is_lost for one in readings)
    state: HostState = "ok"
    if is_lost and (age_s is None or age_s > STALE_S):
        state = "lost"
    elif age_s is None:
        state = "unread"
    elif age_s > STALE_S:
        state = "stale"
    trouble = _trouble(newest, state)
    told = [one for reading in readings if reading.snapshot for one in reading.snapshot.engines]
    engines = list({(one.pool, one.rank): one for one in told}.values())
    found = newest.snapshot or Snapshot(
        0.0, HostSample(reasons=dict.fromkeys(_HOST_FIELDS, trouble or ""))
    )
    host = replace(
        found.host,
        name=newest.name,
        state=state,
        age_s=None if age_s is None else round(age_s, 1),
        trouble=trouble,
    )
    return Snapshot(
        found.at,
        host,
        tuple(_gpu(gpu, host, age_s or 0.0, engines) for gpu in found.gpus),
        tuple(_engine(one, host) for one in engines),
    )


def _trouble(newest: HostReading, state: HostState) -> str | None:
    if state == "lost":
        return f"No engine runs on {newest.name} any more."
    if state == "stale":
        return newest.trouble or f"{newest.name} does not report any more."
    if state == "unread":
        return newest.trouble or f"{newest.name} has not reported yet."
    trouble = newest.snapshot.trouble if newest.snapshot is not None else None
    return trouble and f"On {newest.name}: {trouble}"


def _gpu(
    gpu: GpuSample, host: HostSample, age_s: float, engines: Sequence[EngineSample]
) -> GpuSample:
    state = gpu.state
    if host.state == "lost" and state != "unusable":
        state = "lost"
    elif host.state == "stale" and state in ("ok", "divided"):
        state = "stale"
    return replace(
        gpu,
        host=host.name,
        state=state,
        age_s=None if gpu.age_s is None else round(gpu.age_s + age_s, 1),
        users=None if gpu.users is None else _name_users(gpu.users, engines),
    )


def _name_users(uses: Sequence[GpuUse], engines: Sequence[EngineSample]) -> tuple[GpuUse, ...]:
    """Name the processes that are engines, by their pids there."""
    ranks = {one.pid: (one.pool, one.rank) for one in engines}
    seen = {ranks[use.pid] for use in uses if use.pid in ranks}
    named = []
    for use in uses:
        if use.pid in ranks:
            pool, rank = ranks[use.pid]
            words = f"pool '{pool}' rank {rank} (user {use.user or 'unknown'}, pid {use.pid})"
            named.append(replace(use, words=words, pool=pool, rank=rank))
        elif (use.pool, use.rank) not in seen:  # else it is the hold of an engine that is listed
            named.append(use)
    return tuple(named)


def _engine(one: EngineSample, host: HostSample) -> EngineSample:
    if host.state == "ok":
        return replace(one, host=host.name)
    reasons = dict.fromkeys(_ENGINE_FIELDS, host.trouble or "")
    return replace(one, host=host.name, cpu_percent=None, rss_bytes=None, reasons=reasons)


def _make_snapshot(told: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        at=told["at"],
        host=_make(HostSample, told["host"]),
        gpus=tuple(map(_make_gpu, told["gpus"])),
        engines=tuple(_make(EngineSample, one) for one in told["engines"]),
        trouble=told["trouble"],
        driver_version=told["driver_version"],
    )


def _make_gpu(told: Mapping[str, Any]) -> GpuSample:
    gpu = _make(GpuSample, told)
    throttle, users, compute = told["throttle"], told["users"], told.get("compute_capability")
    return replace(
        gpu,
        compute_capability=None if compute is None else tuple(compute),
        throttle=None if throttle is None else tuple(throttle),
        users=None if users is None else tuple(_make(GpuUse, use) for use in users),
    )


def _make(kind: type[Record], told: Mapping[str, Any]) -> Record:
    """Make a record; what another version tells beyond this one's fields is left out."""
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in told.items() if name in known})
