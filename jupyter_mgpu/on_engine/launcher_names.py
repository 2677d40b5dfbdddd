"""The variables by which schedulers and MPI tell a process its rank.

A notebook that runs inside an allocation has them, with the one rank that it is there. Libraries
on an engine (Lightning, Accelerate, JAX, DeepSpeed) would take them for the engine's.
"""

import os
import re

_NAMES = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|GTIDS|NPROCS|NTASKS.*|TASKS.*|TASK_PID|STEP.*|SRUN_.*|LAUNCH_.*)"
    r"|PMI_.*|PMI2_.*|PMIX_.*|PALS_.*|FLUX_TASK_.*|I_MPI_.*RANK.*|MPI_LOCAL.*|MV2_COMM_WORLD_.*"
    r"|OMPI_COMM_WORLD_.*|OMPI_UNIVERSE_SIZE|JSM_NAMESPACE_.*"
)


def tells_a_rank(name: str) -> bool:
    """Tell whether a variable says which one of several processes this is."""
    return _NAMES.fullmatch(name) is not None


def forget_ranks() -> None:
    """Remove them from this process; the allocation itself (SLURM_JOB_ID) stays known."""
    for name in filter(tells_a_rank, list(os.environ)):
        del os.environ[name]
