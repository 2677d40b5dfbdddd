"""The state of the GPUs' view: every device of the machine and of other hosts, and the hosts."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.widgets.states import State, parts


@dataclass(slots=True)
class GpuFacts:
    """What is known of one GPU; readings, memories and series as `parts` makes them.

    Attributes:
        uuid: Its UUID; its label where that was never read.
        why: Why it is stale or lost, where that is its host.
        utilization_history: In percent.
        memory_history: In GiB.
    """

    label: str
    index: int | None
    uuid: str
    name: str
    state: str
    stale_s: float | None = None
    why: str | None = None
    utilization: dict[str, Any] = field(default_factory=lambda: parts.reading(None))
    memory: dict[str, Any] = field(default_factory=lambda: parts.memory(None, None))
    power: dict[str, Any] = field(default_factory=lambda: parts.reading(None))
    power_limit: dict[str, Any] = field(default_factory=lambda: parts.reading(None))
    temperature: dict[str, Any] = field(default_factory=lambda: parts.reading(None))
    throttle: list[str] | None = None
    users: list[dict[str, Any]] = field(default_factory=list)
    utilization_history: dict[str, Any] = field(default_factory=lambda: parts.series(1.0, ()))
    memory_history: dict[str, Any] = field(default_factory=lambda: parts.series(1.0, ()))


def gpus_state(
    gpus: Iterable[GpuFacts],
    host: dict[str, Any],
    *,
    trouble: str | None = None,
    hosts: Iterable[dict[str, Any]] = (),
) -> State:
    """Describe the devices of this machine, and of other hosts.

    Args:
        gpus: In nvidia-smi's order, this machine's first.
        host: `cpu`, a reading in percent, and `memory`.
        trouble: Why there are no GPUs, or no readings.
        hosts: Other hosts: as `host`, with their `name`, `state`, `stale_s` and `trouble`.
    """
    return {
        **parts.frame("gpus"),
        "trouble": trouble,
        "host": host,
        "hosts": list(hosts),
        "gpus": [_gpu(gpu) for gpu in gpus],
    }


def _gpu(gpu: GpuFacts) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in GpuFacts.__dataclass_fields__}
