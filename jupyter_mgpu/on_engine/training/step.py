"""One step of a training: this rank's share of a batch, the exchange, the update."""

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_mgpu.on_engine.training.batch_norm import SharedStatistics
from jupyter_mgpu.on_engine.training.batches import Part
from jupyter_mgpu.on_engine.training.evaluation import Forward, Metric, measured
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.setup import Precision


class Stepper:
    """Computes gradients of whole batches and updates the network.

    A rank's loss counts by its share of the batch, so that the sum over the ranks is the loss of
    the whole batch, and the update that of one device.

    Args:
        net: The network, on its device.
        loss: Takes output and target, returns the mean over its samples.
        optimizer: Of the network's parameters.
        options: What was asked for.
        ranks: Who trains.
    """

    def __init__(
        self,
        net: Any,
        loss: Any,
        metrics: Mapping[str, Metric],
        optimizer: Any,
        precision: Precision,
        options: TrainingOptions,
        ranks: Ranks,
    ) -> None:
        self._net = net
        self._loss = loss
        self._metrics = metrics
        self._optimizer = optimizer
        self._precision = precision
        self._options = options
        self._ranks = ranks
        self._forward = Forward(options, precision, ranks.device)
        self._statistics = SharedStatistics(net, ranks)
        self._synced = [layer for layer in net.modules() if hasattr(layer, "counts")]
        self._parallel = net
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
            with contextlib.nullcontext() if is_last else self._unsynced():
                self._statistics.before_pass()
                output, target = self._forward(self._parallel, part.batch)
                with self._precision.autocast():
                    loss = self._checked(self._loss(output, target))
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
        import torch

        scaler = self._precision.scaler
        if self._options.clip_norm is not None:
            scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._net.parameters(), self._options.clip_norm)
        scaler.step(self._optimizer)
        scaler.update()

    def go_parallel(self, parts: Sequence[Part]) -> None:
        """Let gradients be exchanged from here on, after a look at the first batch.

        Harmless when it has been called before.

        Raises:
            ValueError: If a parameter has no gradient: the ranks would wait for it.
        """
        if self._ranks.is_alone or self._parallel is not self._net:
            return
        from torch.nn.parallel import DistributedDataParallel

        may_be_unused = self._options.find_unused_parameters
        if not may_be_unused:
            self._refuse_unused(parts[0])
        self._parallel = DistributedDataParallel(
            self._net,
            process_group=self._ranks.group,
            find_unused_parameters=may_be_unused,
            **_own_buffers(),
        )
        if not may_be_unused:
            # After its first pass it packs the gradients anew, and then sums round differently:
            # a training that is resumed would differ in the last bit.
            self._try(parts[0])

    @property
    def exchange_s(self) -> float:
        """How long the exchange between ranks has taken, beyond what it ran beside the network."""
        if self._parallel is self._net:
            return 0.0
        found = self._parallel._get_ddp_logging_data()  # noqa: SLF001 - documented for users
        exposed = found.get("avg_backward_comm_time", 0) - found.get(
            "avg_backward_compute_comm_overlap_time", 0
        )
        return self._num_exchanges * max(0.0, float(exposed)) / 1e9 + self._ranks.waited.seconds

    def _refuse_unused(self, part: Part) -> None:
        unused = self._try(part)
        if unused:
            raise ValueError(
                f"The loss does not depend on these parameters: {', '.join(unused[:8])}. Freeze "
                "them by requires_grad_(False), or allow them by find_unused_parameters=True."
            )

    def _try(self, part: Part) -> list[str]:
        """Compute gradients and leave no trace; name the parameters that get none."""
        import torch

        buffers = [(buffer, buffer.clone()) for buffer in self._net.buffers()]
        devices = [self._ranks.device] if self._ranks.device.startswith("cuda") else []
        with torch.random.fork_rng(devices):
            output, target = self._forward(self._parallel, part.batch)
            self._checked(self._loss(output, target)).backward()
        unused = [
            name
            for name, parameter in self._net.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        self._optimizer.zero_grad(set_to_none=True)
        for buffer, value in buffers:
            buffer.copy_(value)
        return unused

    def _checked(self, loss: Any) -> Any:
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

    def _unsynced(self) -> Any:
        return (
            self._parallel.no_sync()
            if self._parallel is not self._net
            else contextlib.nullcontext()
        )


def _own_buffers() -> dict[str, bool]:
    """Let each rank keep its buffers: `SharedStatistics` makes those equal that should be."""
    from torch.nn.parallel import DistributedDataParallel

    known = inspect.signature(DistributedDataParallel).parameters
    return {
        "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
    }
