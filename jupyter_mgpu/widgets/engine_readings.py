"""What the monitor has measured of a pool's engines, as their view shows it."""

from typing import Any

from jupyter_mgpu.engines import EngineStatus
from jupyter_mgpu.monitor import GpuSample, Series, Snapshot, Watch
from jupyter_mgpu.widgets.states import parts
from jupyter_mgpu.widgets.states.pool import EngineReadings


def readings_of(
    engines: tuple[EngineStatus, ...], uuids: dict[int, str], watch: Watch
) -> dict[int, EngineReadings]:
    """Return the readings of each rank: of its GPU, or of its process where it has none."""
    snapshot = watch.snapshot()
    found: dict[int, EngineReadings] = {}
    for engine in engines:
        gpu = snapshot.gpu(uuids[engine.rank]) if engine.rank in uuids else None
        if gpu is not None:
            found[engine.rank] = _of_gpu(gpu, watch)
        else:
            found[engine.rank] = _of_process(engine, snapshot, watch)
    return found


def _of_gpu(gpu: GpuSample, watch: Watch) -> EngineReadings:
    return EngineReadings(
        what="gpu",
        utilization=gpu_reading(gpu, "utilization_percent"),
        memory=gpu_memory(gpu),
        utilization_history=history(watch.series(gpu.uuid or "", "utilization_percent")),
    )


def _of_process(engine: EngineStatus, snapshot: Snapshot, watch: Watch) -> EngineReadings:
    pid = engine.pid if engine.host is None else None
    sample = snapshot.engine(pid) if pid is not None else None
    total = snapshot.host.memory_total_bytes
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
        utilization_history=history(watch.series(pid, "cpu_percent")),
    )


def gpu_reading(gpu: GpuSample, name: str) -> dict[str, Any]:
    """Return one value of a GPU, or why there is none."""
    if gpu.state == "lost":
        return parts.reading(None, "the GPU is lost")
    return parts.reading(getattr(gpu, name), gpu.reasons.get(name))


def gpu_memory(gpu: GpuSample) -> dict[str, Any]:
    """Return a GPU's memory, or why it is not known."""
    return parts.memory(
        gpu.memory_used_bytes if gpu.state != "lost" else None,
        gpu.memory_total_bytes,
        gpu.memory_reserved_bytes,
        "the GPU is lost" if gpu.state == "lost" else gpu.reasons.get("memory_used_bytes"),
    )


def history(found: Series) -> dict[str, Any]:
    """Return a series of percents."""
    values = [None if value is None else round(value) for value in found.values]
    return parts.series(found.step_s, values)


def memory_history(found: Series) -> dict[str, Any]:
    """Return a series of bytes in GiB, as short as it can be seen."""
    values = [None if value is None else round(value / 2**30, 2) for value in found.values]
    return parts.series(found.step_s, values)
