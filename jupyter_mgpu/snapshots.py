"""One sample of everything: of this machine, and of the other hosts of the open pools."""

import threading
import time
from typing import Any

from jupyter_mgpu.monitor import EngineProcess, HostReading, Snapshot, take_snapshot
from jupyter_mgpu.pools import open_pools

FIRST_ANSWER_S = 3.0
"""So long a host may take for its first reading: its sampler has to start."""
FRESH_S = 1.5
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
    return take_snapshot(engine_processes(), _wait_for_hosts)


def engine_processes() -> list[EngineProcess]:
    """List the engines of the open pools that have a process on this machine."""
    return [
        EngineProcess(engine.pid, pool.name, int(engine.rank))
        for pool in open_pools()
        for engine in pool.engines
        if engine.pid is not None and engine.host is None
    ]


def host_readings() -> list[HostReading]:
    """Return what is known of the other hosts of the open pools, and have them read on."""
    return [HostReading.from_dict(told) for told in _look()]


def _look() -> list[dict[str, Any]]:
    return [told for pool in open_pools() for told in pool.owner.far_hosts()]


def _wait_for_hosts() -> list[HostReading]:
    """Return new readings of all hosts that give some within a few seconds."""
    deadline_s = time.monotonic() + FIRST_ANSWER_S
    while time.monotonic() < deadline_s and any(map(_is_awaited, _look())):
        threading.Event().wait(_LOOK_S)
    return host_readings()


def _is_awaited(told: dict[str, Any]) -> bool:
    """Tell whether a host that was not asked before may soon give its first new reading."""
    if told["is_lost"] or told["watched_s"] > FIRST_ANSWER_S:
        return False
    reading = told["reading"]
    if reading is None:
        return told["trouble"] is None
    knows_gpus = reading["gpus"] or reading["trouble"] is not None
    return not knows_gpus or told["age_s"] > FRESH_S
