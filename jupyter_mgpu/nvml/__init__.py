"""The only door to NVML: readings in, frozen records with units out.

    caller -> driver.run(job) -> one daemon thread -> pynvml -> libnvidia-ml.so.1

Nothing here creates a CUDA context, and importing it imports no pynvml and touches no GPU.
"""

from jupyter_mgpu.nvml.inventory import Inventory, UnusableGpu, read_inventory
from jupyter_mgpu.nvml.reading import NOT_REPORTED, GpuProcess, Reading, all_unknown, read_devices
from jupyter_mgpu.nvml.sampling import Sampled, Sampling
from jupyter_mgpu.nvml.troubles import NO_LIBRARY, NvmlTroubleError, Trouble

__all__ = [
    "NOT_REPORTED",
    "NO_LIBRARY",
    "GpuProcess",
    "Inventory",
    "NvmlTroubleError",
    "Reading",
    "Sampled",
    "Sampling",
    "Trouble",
    "UnusableGpu",
    "all_unknown",
    "read_devices",
    "read_inventory",
]
