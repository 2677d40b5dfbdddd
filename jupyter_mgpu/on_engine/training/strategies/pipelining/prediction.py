"""Outputs of a network whose layers are on different ranks."""

from collections.abc import Callable, Iterator
from typing import Any

from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.sources import ahead, in_order, make_source
from jupyter_mgpu.on_engine.training.strategies.pipelining.assembly import assembled
from jupyter_mgpu.on_engine.training.strategies.pipelining.needs import everybody, without_samples


class StagedOutputs:
    """Runs batches through the ranks' stages, in order; all ranks iterate over it.

    Args:
        net: The network; it is changed in place.
        data: As `predict` takes it; only the first rank loads samples.
        options: With size of the batches.
        ranks: Who computes.
        inputs_of: Takes the inputs out of a batch.
    """

    def __init__(
        self,
        net: Any,
        data: Any,
        options: TrainingOptions,
        ranks: Ranks,
        inputs_of: Callable[[Any], Any],
    ) -> None:
        self.net = net
        _, self._flow, _ = assembled(net, data, options, ranks)
        self._inputs_of = inputs_of
        self._device = ranks.device
        own = data if self._flow.is_first else without_samples(data)
        self._source = make_source(own, everybody(ranks), in_order(options), "data")
        self.num_batches = self._source.batches_per_epoch

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield for each batch its number of samples, and on the last rank the output."""
        for (part,) in ahead(self._source.epoch(0), self._device):
            inputs = self._inputs_of(part.batch) if self._flow.is_first else None
            output = self._flow.output(inputs, part.num_rows)
            yield part.num_rows, [output] if self._flow.is_last else []
