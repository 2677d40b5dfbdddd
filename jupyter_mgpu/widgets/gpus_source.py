"""The GPUs of this machine, and of the pools' other hosts, as the source of views."""

from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.monitor import GpuSample, GpuUse, HostSample, Snapshot, Watch
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
        own = sorted((gpu for gpu in snapshot.gpus if gpu.host is None), key=_number)
        others = [gpu for gpu in snapshot.gpus if gpu.host is not None]
        return gpus_state(
            [_facts(gpu, snapshot, watch) for gpu in (*own, *others)],
            _host(snapshot.host),
            trouble=snapshot.trouble if own or not others else None,
            hosts=[_other_host(host) for host in snapshot.other_hosts],
        )

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


def _facts(gpu: GpuSample, snapshot: Snapshot, watch: Watch) -> GpuFacts:
    uuid = gpu.uuid or ""
    where = "" if gpu.host is None else f" on {gpu.host}"
    host = None if gpu.host is None else snapshot.other_host(gpu.host)
    why = None if host is None or host.state == "ok" else host.trouble
    why_lost = why if gpu.state == "lost" else None
    return GpuFacts(
        label=f"{gpu.label}{where}",
        index=gpu.index,
        uuid=f"{gpu.uuid or gpu.label}{where}",
        name=gpu.name or "name not known",
        state="stale" if gpu.state == "stale" else "lost" if gpu.state == "lost" else "ok",
        stale_s=gpu.age_s if gpu.state == "stale" else None,
        why=why,
        utilization=gpu_reading(gpu, "utilization_percent", why_lost),
        memory=gpu_memory(gpu, why_lost),
        power=gpu_reading(gpu, "power_watts", why_lost),
        power_limit=gpu_reading(gpu, "power_limit_watts", why_lost),
        temperature=gpu_reading(gpu, "temperature_celsius", why_lost),
        throttle=None if gpu.throttle is None else list(gpu.throttle),
        users=[_user(use) for use in gpu.users or ()],
        utilization_history=history(watch.series(uuid, "utilization_percent", host=gpu.host)),
        memory_history=memory_history(watch.series(uuid, "memory_used_bytes", host=gpu.host)),
    )


def _user(use: GpuUse) -> dict[str, Any]:
    return {
        "words": use.words,
        "pool": use.pool,
        "rank": use.rank,
        "memory": use.memory_used_bytes,
    }


def _other_host(host: HostSample) -> dict[str, Any]:
    is_stale = host.state == "stale"
    return {
        "name": host.name,
        "state": host.state,
        "stale_s": host.age_s if is_stale else None,
        "trouble": host.trouble,
        **_host(host if host.state != "lost" else HostSample(reasons=_all_unknown(host.trouble))),
    }


def _all_unknown(why: str | None) -> dict[str, str]:
    return dict.fromkeys(("cpu_percent", "memory_used_bytes"), why or "")


def _host(host: HostSample) -> dict[str, Any]:
    reasons = host.reasons
    return {
        "cpu": parts.reading(host.cpu_percent, reasons.get("cpu_percent")),
        "memory": parts.memory(
            host.memory_used_bytes,
            host.memory_total_bytes,
            reason=reasons.get("memory_used_bytes"),
        ),
    }
