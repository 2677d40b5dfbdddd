"""GPUs and host as flat rows of plain JSON values."""

import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jupyter_mgpu.monitor import GpuSample, GpuUse, HostSample, Snapshot
from jupyter_mgpu.server.document import Row

FIELDS = {
    "utilization": "utilization_percent",
    "memory_used": "memory_used_bytes",
    "memory_total": "memory_total_bytes",
    "memory_reserved": "memory_reserved_bytes",
    "power": "power_watts",
    "power_limit": "power_limit_watts",
    "temperature": "temperature_celsius",
}
"""The fields of a GPU's row that are measured, and what they are in a sample."""

STATE_WORDS = {
    "stale": "The driver does not answer; these are its last values.",
    "lost": "It does not answer the driver any more: it fell off the bus, or needs a reset.",
    "divided": "divided into MIG instances",
}

HOST_WORDS = {
    "stale": "Its host does not report any more; these are its last values.",
    "lost": "No engine runs on its host any more; these are its last values.",
}

PoolOf = Callable[[GpuUse, str | None], str | None]


def gpu_rows(snapshot: Snapshot, pool_of: PoolOf) -> dict[str, dict[str, Any]]:
    """Describe every GPU and MIG instance.

    Args:
        snapshot: The last samples.
        pool_of: Gives the id of the pool that uses a GPU of a host, None for others.
    """
    states = {host.name: host.state for host in snapshot.other_hosts}
    return {
        row_id(gpu): _gpu(gpu, order, pool_of, states.get(gpu.host, "ok"))
        for order, gpu in enumerate(snapshot.gpus)
    }


def row_id(gpu: GpuSample) -> str:
    """Return the id of a GPU's row, which no GPU of another host has."""
    own = gpu.uuid or f"gpu{gpu.index}"
    return own if gpu.host is None else f"{gpu.host}/{own}"


def on_host(label: str, host: str | None) -> str:
    """Name a GPU with the other host that it is in."""
    return label if host is None else f"{label} on {host}"


def _gpu(gpu: GpuSample, order: int, pool_of: PoolOf, host_state: str) -> dict[str, Any]:
    is_stale = gpu.state == "stale"
    return {
        "label": on_host(gpu.label, gpu.host),
        "host": gpu.host,
        # Numbers are of one host: a client that shows them alone, or asks for them, means this one.
        "index": gpu.index if gpu.host is None else None,
        "order": order,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "state": gpu.state,
        "state_words": HOST_WORDS.get(host_state)
        or STATE_WORDS.get(gpu.state)
        or _why_unusable(gpu),
        "stale_s": round(gpu.age_s) if is_stale and gpu.age_s is not None else None,
        **{field: getattr(gpu, name) for field, name in FIELDS.items()},
        "throttle": None if gpu.throttle is None else list(gpu.throttle),
        # Empty also where nobody can tell: `reasons` has an entry then.
        "users": [_use(use, pool_of(use, gpu.host)) for use in gpu.users or ()],
        "reasons": _reasons(gpu.reasons),
    }


def _why_unusable(gpu: GpuSample) -> str | None:
    return next(iter(gpu.reasons.values()), None) if gpu.state == "unusable" else None


def _use(use: GpuUse, pool_id: str | None) -> dict[str, Any]:
    return {
        "words": use.words,
        "pid": use.pid,
        "pool": pool_id,
        "pool_name": use.pool,
        "rank": use.rank,
        "memory": use.memory_used_bytes,
        "ours": pool_id is not None,
    }


def _reasons(reasons: Mapping[str, str]) -> dict[str, str]:
    """Name the fields as the rows do."""
    names = {name: field for field, name in FIELDS.items()}
    return {names.get(name, name): reason for name, reason in reasons.items()}


def host_row(sample: HostSample, identity: Mapping[str, str | None]) -> Row:
    """Describe this machine."""
    return {
        **identity,
        "cpu": sample.cpu_percent,
        "memory_used": sample.memory_used_bytes,
        "memory_total": sample.memory_total_bytes,
        "reasons": {
            {"cpu_percent": "cpu"}.get(name, name.removesuffix("_bytes")): reason
            for name, reason in sample.reasons.items()
        },
    }


def other_host_rows(samples: Iterable[HostSample]) -> dict[str, Row]:
    """Describe other hosts, by ids that this machine's does not have."""
    return {
        f"other/{sample.name}": {
            **host_row(sample, {"hostname": sample.name, "boot_id": None}),
            "state": sample.state,
            "stale_s": round(sample.age_s or 0) if sample.state == "stale" else None,
            "trouble": sample.trouble,
        }
        for sample in samples
    }


def host_identity() -> dict[str, str | None]:
    """Tell this machine, as of this boot, from others."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = None
    return {"hostname": socket.gethostname(), "boot_id": boot_id}
