"""Divides a network's parameters over the ranks."""

import gc
from typing import Any

from jupyter_mgpu.on_engine.training.ranks import Clock, Ranks
from jupyter_mgpu.on_engine.training.strategies.sharding.mesh import mesh_of
from jupyter_mgpu.on_engine.training.strategies.sharding.traffic import Gathering, Reducing
from jupyter_mgpu.on_engine.training.strategies.sharding.units import count, units_of
from jupyter_mgpu.on_engine.training.trees import leaves_of, map_leaves


def divide(net: Any, ranks: Ranks, waited: Clock) -> list[int]:
    """Let each rank have its part of every parameter, on its device.

    A unit's parameters are gathered when it is called, and let go of after it; see `units_of`.

    Args:
        net: The network; it is changed in place. Each unit comes to the device on its own, so that
            the whole of it need not fit there.
        ranks: Who has the parts.
        waited: Adds up how long the exchange between CPU engines takes.

    Returns:
        How many parameters are gathered at a time: those of each unit.

    Raises:
        MgpuError: If the ranks' backend cannot do what this needs.
    """
    from torch.distributed.fsdp import fully_shard

    gc.collect()  # a network of an earlier training: torch's hooks tie it into circles
    mesh = mesh_of(ranks)
    _make_contiguous(net)
    units = units_of(net)
    counts = [count(unit) for unit in units]
    counts.append(count(net) - sum(counts))
    for unit in (*units, net):
        unit.register_forward_hook(_without_views)  # comes before torch's own
        fully_shard(unit, mesh=mesh)
        if mesh.device_type == "cpu":
            unit.set_custom_all_gather(Gathering(waited))
            unit.set_custom_reduce_scatter(Reducing(waited))
    return [number for number in counts if number]


def _make_contiguous(net: Any) -> None:
    """Let parameters lie in the order of their indices: torch cuts no others."""
    for parameter in net.parameters():
        if not parameter.is_contiguous():
            parameter.data = parameter.data.contiguous()


def _without_views(module: Any, inputs: Any, output: Any) -> Any:  # noqa: ARG001 - torch's order
    """Copy outputs that are views: a change in place would take torch's hooks from them."""
    if not any(map(_is_view, leaves_of(output))):
        return None  # as it is
    return map_leaves(lambda leaf: leaf.clone() if _is_view(leaf) else leaf, output)


def _is_view(leaf: Any) -> bool:
    # torch has no other way to ask.
    return bool(getattr(leaf, "requires_grad", False)) and leaf._is_view()  # noqa: SLF001
