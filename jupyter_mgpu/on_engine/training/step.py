"""One step of a training: this rank's share of a batch, the exchange, the update."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jupyter_mgpu.on_engine.training.batch_norm import SharedStatistics
from jupyter_mgpu.on_engine.training.batches import Part
from jupyter_mgpu.on_engine.training.forward import Forward
from jupyter_mgpu.on_engine.training.metrics import Metric, measured
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.setup import Precision

Trial = Callable[[], list[str]]


class Exchange(Protocol):
    """How the ranks share a network, as far as a step must know; see `strategies`."""

    net: Any
    module: Any

    def begin(self, trial: Trial) -> None:
        """Get ready to exchange gradients."""

    def unsynced(self) -> contextlib.AbstractContextManager[None]:
        """Keep gradients on this rank."""

    def clip(self, norm: float) -> None:
        """Limit the norm of all gradients together."""

    def exchange_s(self, num_steps: int) -> float:
        """Tell how long the exchange has taken."""


class Stepper:
    """Computes gradients of whole batches and updates the network.

    A rank's loss counts by its share of the batch, so that the sum over the ranks is the loss of
    the whole batch, and the update that of one device.

    Args:
        exchange: How the ranks share the network.
        loss: Takes output and target, returns the mean over its samples.
        optimizer: Of the network's parameters.
        options: What was asked for.
        ranks: Who trains.
    """

    def __init__(
        self,
        exchange: Exchange,
        loss: Any,
        metrics: Mapping[str, Metric],
        optimizer: Any,
        precision: Precision,
        options: TrainingOptions,
        ranks: Ranks,
    ) -> None:
        self._exchange = exchange
        self._net = net = exchange.net
        self._loss = loss
        self._metrics = metrics
        self._optimizer = optimizer
        self._precision = precision
        self._options = options
        self._ranks = ranks
        self._forward = Forward(options, precision, ranks.device)
        self._statistics = SharedStatistics(net, ranks)
        self._synced = [layer for layer in net.modules() if hasattr(layer, "counts")]
        self._num_exchanges = 0

    def gradients(self, parts: Sequence[Part]) -> Any:
        """Compute the gradients of a batch.

        Returns:
            This rank's share of the batch's loss and metrics, a tensor.

        Raises:
            TypeError: If the loss is no number, or not one that depends on the network.
        """
        import torch

        self._num_exchanges += 1
        self._optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(1 + len(self._metrics), dtype=torch.float64, device=self._ranks.device)
        for place, part in enumerate(parts):
            for layer in self._synced:
                layer.counts = part.num_rows > 0
            is_last = place == len(parts) - 1
            with contextlib.nullcontext() if is_last else self._exchange.unsynced():
                self._statistics.before_pass()
                output, target = self._forward(self._exchange.module, part.batch)
                with self._precision.autocast():
                    loss = checked(self._loss(output, target))
                weighted = loss * (part.weight * self._ranks.world_size)
                self._precision.scaler.scale(weighted).backward()
                # Not before: the way back checks that nobody has touched the statistics.
                self._statistics.after_pass(part.num_rows)
            with torch.no_grad():
                if part.num_rows:
                    found = [loss.detach(), *measured(self._metrics, output, target)]
                    values = torch.stack([value.double().to(sums.device) for value in found])
                    sums += part.weight * values
        return sums

    def update(self) -> None:
        """Update the network by the gradients."""
        scaler = self._precision.scaler
        if self._options.clip_norm is not None:
            scaler.unscale_(self._optimizer)
            self._exchange.clip(self._options.clip_norm)
        scaler.step(self._optimizer)
        scaler.update()

    def go_parallel(self, parts: Sequence[Part]) -> None:
        """Let gradients be exchanged from here on, after a look at the first batch.

        Harmless when it has been called before.

        Raises:
            ValueError: If a parameter has no gradient: the ranks would wait for it.
        """
        self._exchange.begin(lambda: self._try(parts[0]))

    @property
    def exchange_s(self) -> float:
        """How long the exchange between ranks has taken, beyond what it ran beside the network."""
        return self._exchange.exchange_s(self._num_exchanges)

    def _try(self, part: Part) -> list[str]:
        """Compute gradients and leave no trace; name the parameters that get none."""
        import torch

        buffers = [(buffer, buffer.clone()) for buffer in self._net.buffers()]
        devices = [self._ranks.device] if self._ranks.device.startswith("cuda") else []
        with torch.random.fork_rng(devices):
            output, target = self._forward(self._exchange.module, part.batch)
            checked(self._loss(output, target)).backward()
        unused = [
            name
            for name, parameter in self._net.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        self._optimizer.zero_grad(set_to_none=True)
        for buffer, value in buffers:
            buffer.copy_(value)
        return unused


def checked(loss: Any) -> Any:
    """Return a loss as a tensor without dimensions.

    Raises:
        TypeError: If it is no number, or not one that depends on the network.
    """
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = (
            f"a tensor of shape {tuple(loss.shape)}"
            if isinstance(loss, torch.Tensor)
            else f"a {type(loss).__name__}"
        )
        raise TypeError(f"The loss is {found}, but it must be one number, the samples' mean.")
    if not loss.requires_grad:
        raise TypeError("The loss does not depend on any parameter that can be trained.")
    return loss.reshape(())


def refuse_unused(names: Sequence[str]) -> None:
    """Refuse parameters that a step does not use.

    Raises:
        ValueError: If there are any.
    """
    if names:
        raise ValueError(
            f"The loss does not depend on these parameters: {', '.join(names[:8])}. Freeze "
            "them by requires_grad_(False), or allow them by find_unused_parameters=True."
        )
