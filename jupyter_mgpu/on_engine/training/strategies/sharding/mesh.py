"""The ranks among which a network's parameters are divided."""

import itertools
from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.on_engine.training.ranks import Ranks

_numbers = itertools.count()


def mesh_of(ranks: Ranks) -> Any:
    """Return torch's view of those that train, on their own process group.

    Raises:
        MgpuError: If their backend cannot do what this needs.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    kind = ranks.device.partition(":")[0]
    group = ranks.group or dist.group.WORLD
    pairs = (pair.split(":") for pair in dist.get_backend_config(group).split(","))
    backend = dict(pairs)[kind]
    if kind == "cuda" and backend != "nccl":
        raise MgpuError(
            f"strategy is 'fsdp', but the ranks exchange by {backend}, which cannot divide "
            "parameters on GPUs. Leave backend out, and start the pool with one engine per GPU."
        )
    if kind == "cpu" and not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        raise MgpuError(
            "strategy is 'fsdp', but this release of torch can only divide parameters of GPUs: "
            "its gloo cannot average. Install a newer one, or use strategy 'ddp'."
        )
    # torch remembers by mesh how tensors are divided: one of a training that has ended, whose
    # group is gone, must not be taken for this one. So each has a name of its own.
    return DeviceMesh.from_group(group, kind, mesh_dim_names=(f"training{next(_numbers)}",))
