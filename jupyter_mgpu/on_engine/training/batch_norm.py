"""Batch normalization over ranks: one set of running statistics, or one normalization.

By default each rank normalizes its own share of a batch. The running statistics are those of the
whole batch, on every rank after every step, with f the ranks' shares of the batch:

    mean = sum(f[i] * mean[i])        var = sum(f[i] * (var[i] + (mean[i] - mean)^2))
"""

from typing import Any

from jupyter_mgpu.on_engine.training.ranks import Ranks


class SharedStatistics:
    """Merges the running statistics of a network's normalization layers after each pass.

    Args:
        net: The network.
        ranks: Who trains it.
    """

    def __init__(self, net: Any, ranks: Ranks) -> None:
        self._ranks = ranks
        self._layers = [] if ranks.is_alone else _layers_with_statistics(net)
        self._before: list[tuple[Any, Any]] = []

    def before_pass(self) -> None:
        """Remember the statistics that all ranks share."""
        self._before = [
            (layer.running_mean.clone(), layer.running_var.clone()) for layer in self._layers
        ]

    def after_pass(self, num_rows: int) -> None:
        """Let the statistics be those of the whole batch.

        Args:
            num_rows: How many samples of this rank count.
        """
        if not self._layers:
            return
        import torch

        seen: list[Any] = []
        for layer, (old_mean, old_var) in zip(self._layers, self._before, strict=True):
            rate = _rate(layer)
            mean = (layer.running_mean.double() - (1 - rate) * old_mean) / rate
            var = (layer.running_var.double() - (1 - rate) * old_var) / rate
            seen += [num_rows * mean, num_rows * (var + mean**2)]
        seen.append(seen[0].new_tensor([num_rows]))
        sums = self._ranks.sum(torch.cat(seen))
        merged = iter((sums[:-1] / sums[-1]).split([len(part) for part in seen[:-1]]))
        for layer, (old_mean, old_var) in zip(self._layers, self._before, strict=True):
            rate = _rate(layer)
            mean = next(merged)
            var = next(merged) - mean**2
            layer.running_mean.copy_((1 - rate) * old_mean + rate * mean)
            layer.running_var.copy_((1 - rate) * old_var + rate * var)


def _layers_with_statistics(net: Any) -> list[Any]:
    import torch

    from jupyter_mgpu.on_engine.training.sync_batch_norm import SyncBatchNorm

    base = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - what all kinds of it share
    return [
        layer
        for layer in net.modules()
        if isinstance(layer, base)
        and not isinstance(layer, torch.nn.SyncBatchNorm | SyncBatchNorm)
        and layer.running_mean is not None
    ]


def _rate(layer: Any) -> float:
    """How much the newest batch counts; without momentum all batches count alike."""
    if layer.momentum is None:
        return 1.0 / float(layer.num_batches_tracked)
    return float(layer.momentum)
