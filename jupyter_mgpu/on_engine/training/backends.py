"""By what the ranks of a training exchange data, and over which network interface."""

import os
from typing import Any


def check_backend(backend: str | None, device: str) -> None:
    """Refuse a backend that cannot be here.

    Args:
        backend: What was asked for; None leaves it to torch.
        device: What this rank computes on.

    Raises:
        ValueError: It says what is missing.
    """
    import torch.distributed as dist

    instead = "Leave it out: then it is nccl on GPUs and gloo on CPUs."
    if backend == "mpi" and not dist.is_mpi_available():
        raise ValueError(f"backend is 'mpi', but this torch was built without MPI. {instead}")
    if backend == "nccl" and not (dist.is_nccl_available() and device.startswith("cuda")):
        raise ValueError(f"backend is 'nccl', but this rank computes on {device!r}. {instead}")


def uses_only(backend: str, config: str) -> bool:
    """Tell whether a group uses one backend for all devices.

    Args:
        backend: Such as "gloo".
        config: The group's, such as "cpu:gloo,cuda:nccl".
    """
    return {part.rpartition(":")[2] for part in config.split(",")} == {backend}


def exchange_words(group: Any, device: str) -> str:
    """Say what a group exchanges by, such as "gloo over lo".

    Args:
        group: torch's process group; the default one if None.
        device: What this rank computes on.
    """
    import torch.distributed as dist

    pairs = (pair.split(":") for pair in dist.get_backend_config(group).split(","))
    backend = dict(pairs)[device.partition(":")[0]]
    interface = os.environ.get(f"{backend.upper()}_SOCKET_IFNAME", "the host's own interface")
    return backend if backend == "mpi" else f"{backend} over {interface}"
