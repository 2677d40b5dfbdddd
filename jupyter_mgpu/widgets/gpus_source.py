"""The GPUs of this machine as the source of views."""

from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.monitor import GpuSample, GpuUse, Snapshot, Watch
from jupyter_mgpu.widgets.engine_readings import gpu_memory, gpu_reading, history, memory_history
from jupyter_mgpu.widgets.sources import shared
from jupyter_mgpu.widgets.states import State, parts
from jupyter_mgpu.widgets.states.gpus import GpuFacts, gpus_state
from jupyter_mgpu.widgets.telemetry import telemetry


class GpusSource:
    """What views show of all devices; it never ends."""

    def state(self, limit: int) -> State:  # noqa: ARG002 - it has no curves
        """Make the devices' state."""
        watch = telemetry.watch()
        snapshot = watch.snapshot()
        gpus = [_facts(gpu, watch) for gpu in sorted(snapshot.gpus, key=_number)]
        return gpus_state(gpus, _host(snapshot), trouble=snapshot.trouble)

    def has_ended(self) -> bool:
        """Never."""
        return False

    def act(self, action: dict[str, Any]) -> str:
        """Set how often samples are taken."""
        if action["action"] != "interval":
            raise MgpuError(f"{action['action']!r} was asked for, which this view does not know.")
        return telemetry.set_interval(action["seconds"])


def gpus_source() -> GpusSource:
    """Return the source of all views of the GPUs."""
    return shared("gpus", GpusSource)


def _number(gpu: GpuSample) -> int:
    """Return nvidia-smi's number: of a GPU that was lost before its first reading, too."""
    return int(gpu.label.split()[1])


def _facts(gpu: GpuSample, watch: Watch) -> GpuFacts:
    uuid = gpu.uuid or ""
    return GpuFacts(
        label=gpu.label,
        index=gpu.index,
        uuid=gpu.uuid or gpu.label,
        name=gpu.name or "name not known",
        state="stale" if gpu.state == "stale" else "lost" if gpu.state == "lost" else "ok",
        stale_s=gpu.age_s if gpu.state == "stale" else None,
        utilization=gpu_reading(gpu, "utilization_percent"),
        memory=gpu_memory(gpu),
        power=gpu_reading(gpu, "power_watts"),
        power_limit=gpu_reading(gpu, "power_limit_watts"),
        temperature=gpu_reading(gpu, "temperature_celsius"),
        throttle=None if gpu.throttle is None else list(gpu.throttle),
        users=[_user(use) for use in gpu.users or ()],
        utilization_history=history(watch.series(uuid, "utilization_percent")),
        memory_history=memory_history(watch.series(uuid, "memory_used_bytes")),
    )


def _user(use: GpuUse) -> dict[str, Any]:
    return {
        "words": use.words,
        "pool": use.pool,
        "rank": use.rank,
        "memory": use.memory_used_bytes,
    }


def _host(snapshot: Snapshot) -> dict[str, Any]:
    host = snapshot.host
    reasons = host.reasons
    return {
        "cpu": parts.reading(host.cpu_percent, reasons.get("cpu_percent")),
        "memory": parts.memory(
            host.memory_used_bytes,
            host.memory_total_bytes,
            reason=reasons.get("memory_used_bytes"),
        ),
    }
