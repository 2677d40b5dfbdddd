"""What an engine has of its host that a scheduler has placed: its GPUs, and what CUDA says; cores.

A scheduler may show each task its own GPUs, all tasks of a host the same ones, or set no mask.
"""

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import replace

from jupyter_mgpu import cuda
from jupyter_mgpu.clusters.probe import list_gpus

NUMBER_VARIABLE = "MGPU_NUM_GPUS"
"""How many GPUs an engine is to have; not set where the pool itself has chosen them."""
MASK_VARIABLE = "CUDA_VISIBLE_DEVICES"
_TASKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE")
_FIRST_NUMBER = re.compile(r"\d+")  # of such as "2(x3),1"


def num_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many GPUs a scheduler was to give this engine; 0 where none was asked."""
    return int(environment.get(NUMBER_VARIABLE, "0"))


def take_own(environment: MutableMapping[str, str] = os.environ) -> None:
    """Narrow the mask to this engine's own GPUs, where it shows those of others on the host too."""
    if NUMBER_VARIABLE not in environment:
        return
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    number, mask = num_gpus(environment), environment.get(MASK_VARIABLE)
    first = int(environment["MGPU_LOCAL_RANK"]) * number
    shown = mask.split(",") if mask else []
    if number == 0 or (mask is None and "SLURM_JOB_ID" in environment):  # it has granted none
        environment[MASK_VARIABLE] = ""
    elif mask is None:
        environment[MASK_VARIABLE] = ",".join(map(str, range(first, first + number)))
    elif len(shown) > number:
        environment[MASK_VARIABLE] = ",".join(shown[first : first + number])


def take_cores(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this engine use as many threads as it has cores, where others run on the host as well."""
    if NUMBER_VARIABLE not in environment or "OMP_NUM_THREADS" in environment:
        return
    tasks = next((environment[name] for name in _TASKS if name in environment), "1")
    own = len(os.sched_getaffinity(0)) // int(_FIRST_NUMBER.match(tasks)[0])  # type: ignore[index]
    environment["OMP_NUM_THREADS"] = environment.get("SLURM_CPUS_PER_TASK") or str(max(1, own))


def find_out(environment: Mapping[str, str]) -> cuda.Answer:
    """Ask CUDA which GPUs it shows an engine; where a scheduler chose them, look up their names."""
    (answer,) = cuda.visible_uuids([environment])
    if answer.uuids is None or not num_gpus(environment):
        return answer
    there = {cuda.bare_uuid(gpu["uuid"]): gpu for gpu in list_gpus()[0]}
    labels = [
        f"GPU {there[uuid]['index']} ({there[uuid]['name']})" if uuid in there else f"GPU {uuid}"
        for uuid in answer.uuids
    ]
    return replace(answer, labels=labels)
