"""Batch normalization over the batch of all ranks, where torch's own needs GPUs."""

from typing import Any

import torch

from jupyter_mgpu.on_engine.training.ranks import Ranks


def convert(net: Any, ranks: Ranks) -> Any:
    """Let a network normalize over all ranks: torch's layers on GPUs, ours elsewhere."""
    if ranks.device.startswith("cuda"):
        return torch.nn.SyncBatchNorm.convert_sync_batchnorm(net, ranks.group)
    return _convert(net, ranks)


def _convert(module: Any, ranks: Ranks) -> Any:
    base = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - what all kinds of it share
    if isinstance(module, base):
        return SyncBatchNorm.of(module, ranks)
    for name, child in module.named_children():
        setattr(module, name, _convert(child, ranks))
    return module


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):  # type: ignore[misc] # noqa: SLF001 - as torch's own
    """A normalization layer that takes mean and variance over all ranks.

    Attributes:
        counts: Whether this rank's samples count; False where others stand in for none.
    """

    counts = True
    ranks: Ranks

    @classmethod
    def of(cls, layer: Any, ranks: Ranks) -> "SyncBatchNorm":
        """Make one that shares another layer's parameters and statistics."""
        made = cls(
            layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats
        )
        made.weight, made.bias = layer.weight, layer.bias
        made.running_mean, made.running_var = layer.running_mean, layer.running_var
        made.num_batches_tracked = layer.num_batches_tracked
        made.training = layer.training
        made.ranks = ranks
        return made

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's own name
        if input.dim() < 2:
            raise ValueError(f"A batch with channels was expected, but the shape is {input.shape}.")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Normalize; the running statistics follow in training, as in torch's own layers."""
        self._check_input_dim(input)
        if not (self.training or self.running_mean is None):
            return super().forward(input)
        output, mean, var, count = _Normalize.apply(input, self.eps, self.ranks, self.counts)
        self._follow(mean, var * count / (count - 1))
        if not self.affine:
            return output
        shape = (1, -1, *(1,) * (input.dim() - 2))
        return output * self.weight.view(shape) + self.bias.view(shape)

    def _follow(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        if not (self.training and self.track_running_stats):
            return
        self.num_batches_tracked.add_(1)
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(var, rate)


class _Normalize(torch.autograd.Function):  # type: ignore[misc] # torch is untyped here
    """(x - mean) / sqrt(var + eps), with mean and var over all ranks and their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        eps: float,
        ranks: Ranks,
        counts: bool,  # noqa: FBT001 - torch passes by position
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the normalized input, and the statistics of the whole batch."""
        dims = [0, *range(2, x.dim())]
        flat = x if counts else x[:0]
        count = x.new_tensor([flat.numel() / x.shape[1]])
        sums = torch.cat([flat.sum(dims), count])
        ranks.sum(sums)
        count, shape = sums[-1], (1, -1, *(1,) * (x.dim() - 2))
        mean = sums[:-1] / count
        squares = ((flat - mean.view(shape)) ** 2).sum(dims)
        ranks.sum(squares)
        var = squares / count
        scale = torch.rsqrt(var + eps)
        output = (x - mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(output, scale, count)
        ctx.ranks, ctx.counts = ranks, counts
        ctx.mark_non_differentiable(mean, var, count)
        return output, mean, var, count

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of the input, which reaches over all ranks."""
        output, scale, count = ctx.saved_tensors
        dims, shape = [0, *range(2, grad.dim())], (1, -1, *(1,) * (grad.dim() - 2))
        sums = torch.stack([grad.sum(dims), (grad * output).sum(dims)])
        ctx.ranks.sum(sums)
        if not ctx.counts:  # mean and variance do not depend on what stands in
            return torch.zeros_like(grad), None, None, None
        mean_grad, mean_product = (sums / count).unbind()
        found = grad - mean_grad.view(shape) - output * mean_product.view(shape)
        return found * scale.view(shape), None, None, None
