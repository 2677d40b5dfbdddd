"""The GPUs of this machine: see them, choose and lease some, pin engines to them, prove it."""

from jupyter_mgpu.gpus.choosing import NO_GPUS, check_request, choose, named
from jupyter_mgpu.gpus.pinning import CPU_ENVIRONMENT, Proof, prove
from jupyter_mgpu.gpus.request import Request
from jupyter_mgpu.gpus.slots import Choice, Slot
from jupyter_mgpu.gpus.table import GpuRow, GpuTable, gpu_count, gpu_table
from jupyter_mgpu.gpus.usage import Notebook, this_notebook
from jupyter_mgpu.gpus.waiting import wait_for_free

__all__ = [
    "CPU_ENVIRONMENT",
    "NO_GPUS",
    "Choice",
    "GpuRow",
    "GpuTable",
    "Notebook",
    "Proof",
    "Request",
    "Slot",
    "check_request",
    "choose",
    "gpu_count",
    "gpu_table",
    "named",
    "prove",
    "this_notebook",
    "wait_for_free",
]
