"""GPUs that use the host's memory: what they use is what their processes use."""

from dataclasses import replace

from jupyter_mgpu import host
from jupyter_mgpu.devices import Device
from jupyter_mgpu.monitor.records import GpuSample
from jupyter_mgpu.nvml import Reading

# GB10 (DGX Spark): some drivers do not support the question, others answer with the host's memory.
_SHARING = ("GB10",)


def is_memory_shared(device: Device, reading: Reading) -> bool:
    """Tell whether a GPU has no memory of its own."""
    if device.mig is not None or device.is_divided or reading.is_lost:
        return False
    if any(name in device.name for name in _SHARING):
        return True
    reason = reading.reasons.get("memory_used_bytes")
    return reason == "not supported" and bool(reading.processes)


def with_host_memory(sample: GpuSample, reading: Reading) -> GpuSample:
    """Give the memory of the listed processes, out of the host's.

    What else is used of the host's memory is not the GPU's.
    """
    used = [process.memory_used_bytes for process in reading.processes or ()]
    known = [memory for memory in used if memory is not None]
    is_known = reading.processes is not None and len(known) == len(used)
    return replace(
        sample,
        memory_used_bytes=sum(known) if is_known else None,
        memory_total_bytes=host.memory_bytes()[1],
        is_memory_shared=True,
    )
