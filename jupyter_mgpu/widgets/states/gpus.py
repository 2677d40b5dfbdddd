"""The state of the GPUs' view: every device of the machine, and the host."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.widgets.states import State, parts


@dataclass(slots=True)
class GpuFacts:
    """What is known of one GPU; readings, memories and series as `parts` makes them.

    Attributes:
        uuid: Its UUID; its label where that was never read.
        utilization_history: In percent.
        memory_history: In GiB.
    """

    label: str
    index: int | None
    uuid: str
    name: str
    state: str
    stale_s: float | None = None
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
    gpus: Iterable[GpuFacts], host: dict[str, Any], *, trouble: str | None = None
) -> State:
    """Describe the devices of this machine.

    Args:
        gpus: In nvidia-smi's order.
        host: `cpu`, a reading in percent, and `memory`.
        trouble: Why there are no GPUs, or no readings.
    """
    return {
        **parts.frame("gpus"),
        "trouble": trouble,
        "host": host,
        "gpus": [_gpu(gpu) for gpu in gpus],
    }


def _gpu(gpu: GpuFacts) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in GpuFacts.__dataclass_fields__}
