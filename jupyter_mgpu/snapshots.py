"""One sample of everything: of this machine, and of the other hosts of the open pools."""

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_mgpu.gpus import GpuRow, GpuTable, table
from jupyter_mgpu.gpus.usage import GpuUser
from jupyter_mgpu.monitor import (
    FRESH_S,
    EngineProcess,
    GpuSample,
    GpuUse,
    HostReading,
    HostSample,
    Snapshot,
    take_snapshot,
    with_hosts,
)

if TYPE_CHECKING:
    from jupyter_mgpu.pool import Pool

Looked = Sequence[Mapping[str, Any]]

FIRST_ANSWER_S = 3.0
"""So long a host may take for its first reading: its sampler has to start."""
_LOOK_S = 0.02


def snapshot() -> Snapshot:
    """Take one sample of GPUs, hosts, and the engines of this notebook's pools.

    Takes a fifth of a second, a few seconds where the driver hangs, or another host of a pool has
    not been asked before or does not answer. Creates no CUDA context and raises nothing because
    of a GPU or a host: what is unknown is None, and `reasons` says why.

    Returns:
        A record with `host`, `gpus`, `engines` and `other_hosts`; `to_pandas()`, `to_csv()`,
        `to_json()` and `to_dict()` turn it into something else.

    Example:
        >>> snapshot().to_pandas()
    """
    return take_snapshot(engine_processes(), wait_for_hosts)


def gpu_table() -> GpuTable:
    """List the GPUs of this machine, and of the pools' other hosts, with who uses them.

    Creates no CUDA context, never raises. Waits for other hosts as `snapshot` does.
    """
    return table_with(wait_for_hosts())


def table_with(told: list[HostReading]) -> GpuTable:
    """List the GPUs of this machine, and of the hosts of some readings, with who uses them."""
    own = table.gpu_table()
    if not told:
        return own
    found = with_hosts(Snapshot(0.0, HostSample()), told, time.monotonic())
    messages = [own.message, *(host.trouble for host in found.other_hosts)]
    return GpuTable((*own.rows, *map(_row, found.gpus)), "\n".join(filter(None, messages)) or None)


def _row(gpu: GpuSample) -> GpuRow:
    state: str = gpu.state
    if gpu.state == "stale" and gpu.age_s is not None:
        state = f"stale {gpu.age_s:.0f} s"
    elif gpu.state == "unusable":
        state = next(iter(gpu.reasons.values()), state)
    uses = gpu.users or ()
    return GpuRow(
        label=gpu.label,
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        state=state,
        compute_capability=gpu.compute_capability,
        memory_used_bytes=gpu.memory_used_bytes,
        memory_total_bytes=gpu.memory_total_bytes,
        utilization_percent=gpu.utilization_percent,
        users=tuple(_user(use, use.pid) for use in uses if use.pid is not None),
        holders=tuple(use.words for use in uses),
        reasons=tuple(gpu.reasons.items()),
        host=gpu.host,
    )


def _user(use: GpuUse, pid: int) -> GpuUser:
    return GpuUser(pid, user=use.user, memory_used_bytes=use.memory_used_bytes, words=use.words)


def engine_processes() -> list[EngineProcess]:
    """List the engines of the open pools that have a process on this machine."""
    return [
        EngineProcess(engine.pid, pool.name, int(engine.rank))
        for pool in _open_pools()
        for engine in pool.engines
        if engine.pid is not None and engine.host is None
    ]


def host_readings() -> list[HostReading]:
    """Return what is known of the other hosts of the open pools, and have them read on."""
    return [HostReading.from_dict(told) for told in _look()]


def _look() -> Looked:
    return [told for pool in _open_pools() for told in pool.owner.far_hosts()]


def _open_pools() -> "list[Pool]":
    if "jupyter_mgpu.pools" not in sys.modules:
        return []  # its import takes long, and nobody has opened one
    from jupyter_mgpu.pools import open_pools

    return open_pools()


def wait_for_hosts(look: Callable[[], Looked] = _look) -> list[HostReading]:
    """Return new readings of all hosts that give some within a few seconds.

    Args:
        look: What the owners of the pools tell; of the open ones by default.
    """
    deadline_s = time.monotonic() + FIRST_ANSWER_S
    while any(map(_is_awaited, told := look())) and time.monotonic() < deadline_s:
        threading.Event().wait(_LOOK_S)
    return [HostReading.from_dict(host) for host in told]


def _is_awaited(told: Mapping[str, Any]) -> bool:
    """Tell whether a host that was not asked before may soon give its first new reading."""
    if told["is_lost"] or told["watched_s"] > FIRST_ANSWER_S:
        return False
    reading = told["reading"]
    if reading is None:
        return told["trouble"] is None
    knows_gpus = reading["gpus"] or reading["trouble"] is not None
    return not knows_gpus or told["age_s"] > FRESH_S
