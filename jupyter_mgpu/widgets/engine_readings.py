"""What the monitor has measured of a pool's engines, as their view shows it."""

from typing import Any

from jupyter_mgpu.engines import EngineStatus
from jupyter_mgpu.monitor import GpuSample, HostSample, Series, Snapshot, Watch
from jupyter_mgpu.widgets.states import parts
from jupyter_mgpu.widgets.states.pool import EngineReadings


def readings_of(
    engines: tuple[EngineStatus, ...], uuids: dict[int, str], watch: Watch
) -> dict[int, EngineReadings]:
    """Return the readings of each rank: of its GPU, or of its process where it has none."""
    snapshot = watch.snapshot()
    found: dict[int, EngineReadings] = {}
    for engine in engines:
        uuid = uuids.get(engine.rank)
        gpu = None if uuid is None else snapshot.gpu(uuid, engine.host)
        why_old = None if engine.host is None else _why_old(snapshot.other_host(engine.host))
        if gpu is not None:
            found[engine.rank] = _of_gpu(gpu, why_old, watch)
        else:
            found[engine.rank] = _of_process(engine, snapshot, watch)
    return found


def _why_old(host: HostSample | None) -> str | None:
    """Say why there are no new values of another host; None while it reports."""
    if host is None:
        return "not read yet"
    return None if host.state == "ok" else host.trouble


def _of_gpu(gpu: GpuSample, why_old: str | None, watch: Watch) -> EngineReadings:
    series = watch.series(gpu.uuid or "", "utilization_percent", host=gpu.host)
    return EngineReadings(
        what="gpu",
        utilization=gpu_reading(gpu, "utilization_percent", why_old),
        memory=gpu_memory(gpu, why_old),
        utilization_history=history(series),
    )


def _of_process(engine: EngineStatus, snapshot: Snapshot, watch: Watch) -> EngineReadings:
    pid = engine.pid
    sample = snapshot.engine(pid, engine.host) if pid is not None else None
    host = snapshot.host if engine.host is None else snapshot.other_host(engine.host)
    total = None if host is None else host.memory_total_bytes
    if sample is None or pid is None:
        return EngineReadings(
            utilization=parts.reading(None, "not read yet"),
            memory=parts.memory(engine.rss_bytes, total),
        )
    reasons = sample.reasons
    used = sample.rss_bytes if sample.rss_bytes is not None else engine.rss_bytes
    return EngineReadings(
        utilization=parts.reading(sample.cpu_percent, reasons.get("cpu_percent")),
        memory=parts.memory(used, total, reason=reasons.get("rss_bytes")),
        utilization_history=history(watch.series(pid, "cpu_percent", host=engine.host)),
    )


def gpu_reading(gpu: GpuSample, name: str, why_old: str | None = None) -> dict[str, Any]:
    """Return one value of a GPU, or why there is none: also where all that is known is old."""
    why = why_old or _why_lost(gpu)
    return parts.reading(getattr(gpu, name) if why is None else None, why or gpu.reasons.get(name))


def gpu_memory(gpu: GpuSample, why_old: str | None = None) -> dict[str, Any]:
    """Return a GPU's memory, or why it is not known."""
    why = why_old or _why_lost(gpu)
    return parts.memory(
        gpu.memory_used_bytes if why is None else None,
        gpu.memory_total_bytes,
        gpu.memory_reserved_bytes,
        why or gpu.reasons.get("memory_used_bytes"),
    )


def _why_lost(gpu: GpuSample) -> str | None:
    return "the GPU is lost" if gpu.state == "lost" else None


def history(found: Series) -> dict[str, Any]:
    """Return a series of percents."""
    values = [None if value is None else round(value) for value in found.values]
    return parts.series(found.step_s, values)


def memory_history(found: Series) -> dict[str, Any]:
    """Return a series of bytes in GiB, as short as it can be seen."""
    values = [None if value is None else round(value / 2**30, 2) for value in found.values]
    return parts.series(found.step_s, values)
