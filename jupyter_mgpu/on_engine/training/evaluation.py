"""Loss and metrics over data that is not trained on."""

from typing import Any

from jupyter_mgpu.on_engine.training.batches import Part
from jupyter_mgpu.on_engine.training.forward import Forward, evaluating
from jupyter_mgpu.on_engine.training.metrics import (
    Collectors,
    chosen_collectors,
    chosen_metrics,
    measured,
)
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.sources import in_order, to_device
from jupyter_mgpu.on_engine.training.strategies.strategy import Strategy


class Evaluation:
    """Loss and metrics over all of the validation data; every rank takes its share.

    Args:
        strategy: Runs the network.
        loss: Takes output and target, returns the mean over its samples.
        options: With the data.
        ranks: Who shares it.
        forward: Runs the network.

    Raises:
        ValueError: If the data has no samples.
    """

    def __init__(
        self,
        strategy: Strategy,
        loss: Any,
        options: TrainingOptions,
        ranks: Ranks,
        forward: Forward,
    ) -> None:
        self._strategy = strategy
        self._loss = loss
        self._ranks = ranks
        self._forward = forward
        self._metrics = chosen_metrics(options)
        self._collectors = Collectors(chosen_collectors(options))
        self._source = strategy.source(options.validation, in_order(options), "validation data")

    def measure(self) -> dict[str, float]:
        """Return `loss` and the metrics by name; the averages are the same on all ranks.

        Raises:
            ValueError: If the data has no samples.
        """
        import torch

        sums = torch.zeros(2 + len(self._metrics), dtype=torch.float64, device=self._ranks.device)
        with torch.no_grad(), evaluating(self._strategy.net):
            for step in self._source.epoch(0):
                for part in step:
                    found = self._outputs(part)
                    if found is not None:
                        sums += part.num_rows * sums.new_tensor([1.0, *self._values(*found)])
                    self._collect(found)
        self._ranks.sum(sums)
        rows, *totals = sums.tolist()
        if not rows:
            raise ValueError("The validation data has no samples.")
        averages = zip(("loss", *self._metrics), (total / rows for total in totals), strict=True)
        computed = self._collectors.compute() if self._ranks.is_first else {}
        return {**dict(averages), **computed}

    def _outputs(self, part: Part) -> tuple[Any, Any] | None:
        if not part.num_rows and not self._strategy.is_joint:
            return None
        found = self._strategy.outputs(self._forward, part.batch)
        return found if part.num_rows else None

    def _values(self, output: Any, target: Any) -> list[float]:
        loss = self._loss(output, target)
        return [float(value) for value in (loss, *measured(self._metrics, output, target))]

    def _collect(self, found: tuple[Any, Any] | None) -> None:
        """Give the first rank's collectors what all ranks have computed, in the data's order."""
        if not self._collectors:
            return
        for share in self._ranks.gather(found and to_device(found, "cpu")):
            if share is not None and self._ranks.is_first:
                self._collectors.update(*share)
