"""How parameters and gradients travel between CPU engines, where torch's own way has gaps.

Older releases of gloo cannot average, so sums are divided here. All of it waits, and how long is
added up. On GPUs torch's own exchange runs beside the network. Newer releases of torch have other
names for the same functions, and warn of the old ones.
"""

import time
from typing import Any

from jupyter_mgpu.on_engine.training.ranks import Clock


class _Buffers:
    """Makes the tensors that are sent and received."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Return a tensor without values."""
        import torch

        return torch.empty(size, dtype=dtype, device=device)


class Gathering(_Buffers):
    """Collects the ranks' parts of parameters."""

    def __call__(
        self,
        output_tensor: Any,
        input_tensor: Any,
        group: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002, ARG002 - as torch calls it; this one waits
    ) -> None:
        """Fill `output_tensor` with the `input_tensor` of each rank."""
        import torch.distributed as dist

        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        begun_s = time.perf_counter()
        gather(output_tensor, input_tensor, group=group)
        self._clock.seconds += time.perf_counter() - begun_s


class Reducing(_Buffers):
    """Adds up gradients, of which each rank gets its part."""

    def __call__(
        self,
        output_tensor: Any,
        input_tensor: Any,
        group: Any,
        op: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002, ARG002 - as above
    ) -> None:
        """Fill `output_tensor` with this rank's part of the sum, or of the mean."""
        import torch.distributed as dist

        reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        begun_s = time.perf_counter()
        reduce(output_tensor, input_tensor, op=dist.ReduceOp.SUM, group=group)
        self._clock.seconds += time.perf_counter() - begun_s
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(dist.get_world_size(group))
