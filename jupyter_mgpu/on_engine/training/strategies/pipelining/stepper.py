"""One step of a pipelined training: microbatches through the stages, then each rank's update."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from jupyter_mgpu.on_engine.training.batches import Part
from jupyter_mgpu.on_engine.training.metrics import Metric, measured
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.step import checked, refuse_unused
from jupyter_mgpu.on_engine.training.strategies.pipelining.flow import Flow
from jupyter_mgpu.on_engine.training.strategies.pipelining.holdings import Holding, is_here
from jupyter_mgpu.on_engine.training.strategies.pipelining.plan import statistics_of, unequal
from jupyter_mgpu.on_engine.training.trees import map_leaves


class PipelineStepper:
    """Computes gradients of whole batches and updates what this rank has.

    Args:
        net: The network, with this rank's layers on its device.
        flow: This rank's end of the pipeline.
        holding: What this rank has.
        loss: Takes output and target, returns the mean over its samples.
        metrics: Measured on the last rank.
        optimizer: Of what this rank has.
        precision: In which is computed.
        options: What was asked for.
        ranks: Who trains.
    """

    def __init__(
        self,
        net: Any,
        flow: Flow,
        holding: Holding,
        loss: Any,
        metrics: Mapping[str, Metric],
        optimizer: Any,
        precision: Precision,
        options: TrainingOptions,
        ranks: Ranks,
    ) -> None:
        self._net = net
        self._flow = flow
        self._holding = holding
        self._loss = loss
        self._metrics = metrics
        self._optimizer = optimizer
        self._precision = precision
        self._options = options
        self._ranks = ranks
        self._normalizing = statistics_of(net)
        self._is_looked_at = options.find_unused_parameters

    def gradients(self, parts: Sequence[Part]) -> Any:
        """Compute the gradients of a batch.

        Args:
            parts: Its microbatches.

        Returns:
            The batch's loss and metrics on the last rank, zeros on others.

        Raises:
            TypeError: If the loss is no number, or not one that depends on the network.
            ValueError: If a parameter has no gradient.
        """
        self._optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(1 + len(self._metrics), dtype=torch.float64, device=self._ranks.device)
        rows = self._rows_of(parts)

        def finish(output: Any, number: int) -> torch.Tensor:
            part = parts[number]
            output = _real(output, part.num_rows, rows)
            target = part.batch[1]
            with self._precision.autocast():
                loss = checked(self._loss(output, target))
            with torch.no_grad():
                found = [loss.detach(), *measured(self._metrics, output, target)]
                values = torch.stack([value.double().to(sums.device) for value in found])
                sums.add_(part.weight * values)
            return (loss * part.weight).double().reshape(1)

        inputs = [_filled(part, rows) for part in parts] if self._flow.is_first else None
        self._flow.run(inputs, finish, len(parts), rows, is_trained=True)
        self._add_shared()
        self._look()
        return sums

    def _rows_of(self, parts: Sequence[Part]) -> int:
        """Return how many samples each microbatch gets; the first ones are the largest."""
        rows = parts[0].num_rows
        if self._normalizing and parts[-1].num_rows != rows:
            raise ValueError(unequal(self._normalizing[0], parts[0].batch_rows, len(parts)))
        return rows

    def _add_shared(self) -> None:
        """Add up the gradients of parameters that several stages use."""
        for parameter in self._holding.shared:
            if not parameter.requires_grad:
                continue
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros(
                    parameter.shape, dtype=parameter.dtype, device=self._ranks.device
                )
            self._ranks.sum(gradient)
            if is_here(parameter):
                parameter.grad = gradient

    def _look(self) -> None:
        """Refuse parameters that the first batch does not use."""
        if not self._is_looked_at:
            self._is_looked_at = True
            refuse_unused(
                [
                    name
                    for name, parameter in self._net.named_parameters()
                    if is_here(parameter) and parameter.requires_grad and parameter.grad is None
                ]
            )

    def update(self) -> None:
        """Update what this rank has by its gradients."""
        if self._options.clip_norm is not None:
            self._clip(self._options.clip_norm)
        self._optimizer.step()

    def _clip(self, norm: float) -> None:
        """Limit the norm of the gradients of all stages together; as torch does it for one."""
        total = torch.zeros(1, dtype=torch.float64, device=self._ranks.device)
        for parameter in self._holding.counted:
            if parameter.grad is not None:
                total += torch.linalg.vector_norm(parameter.grad).double() ** 2
        self._ranks.sum(total)
        factor = (norm / (total.sqrt() + 1e-6)).clamp(max=1.0)
        for parameter in self._net.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.dtype))

    def go_parallel(self, parts: Sequence[Part]) -> None:
        """Do nothing: stages are ready from the start."""

    @property
    def exchange_s(self) -> float:
        """How long this rank has waited for others, and sent and received."""
        flow = self._flow
        return flow.flowing.seconds - flow.computing.seconds + self._ranks.waited.seconds


def _real(output: Any, num_rows: int, rows: int) -> Any:
    """Leave out what the repeated samples have become."""
    if num_rows == rows:
        return output

    def cut(leaf: Any) -> Any:
        is_per_sample = getattr(leaf, "shape", ())[:1] == (rows,)
        return leaf[:num_rows] if is_per_sample else leaf

    return map_leaves(cut, output)


def _filled(part: Part, rows: int) -> Any:
    """Repeat a microbatch's last sample: all must have one shape. What it becomes is left out."""
    if part.num_rows == rows:
        return part.batch[0]
    places = torch.arange(rows).clamp(max=part.num_rows - 1)
    return map_leaves(lambda leaf: leaf[places.to(leaf.device)], part.batch[0])
