"""Runs a network over data in its order; what comes out is kept on the CPU."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.on_engine import context
from jupyter_mgpu.on_engine.training.forward import evaluating, types_told
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks, group_of
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.sources import (
    ahead,
    in_order,
    is_stream,
    make_source,
    to_device,
)
from jupyter_mgpu.on_engine.training.strategies.sharding.dividing import divide
from jupyter_mgpu.on_engine.training.telling import Progress
from jupyter_mgpu.on_engine.training.trees import leaves_of, map_leaves

Tell = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one rank computed.

    Attributes:
        counts: Its samples of each batch.
        values: Tensors of all these samples, nested as the network returns them; None for none.
    """

    counts: list[int]
    values: Any


def predict_on_rank(
    net: Any,
    data: Any,
    options: TrainingOptions,
    workers: tuple[int, ...],
    loads: tuple[float, ...],
    is_classified: bool,  # noqa: FBT001 - packed by position
) -> Outputs | None:
    """Compute this engine's share; None on a rank that has none."""
    engine = context.require()
    must_meet = is_stream(data) or options.strategy != "ddp"
    meeting = group_of(workers, engine.world_size, options.backend) if must_meet else nullcontext()
    with meeting as group:
        if engine.rank not in workers:
            return None
        equal = tuple(1 / len(workers) for _ in workers)
        ranks = Ranks(workers.index(engine.rank), loads or equal, engine.device, group)
        return outputs_of(net, data, options, ranks, Progress().tell, is_classified=is_classified)


def outputs_of(
    net: Any,
    data: Any,
    options: TrainingOptions,
    ranks: Ranks,
    tell: Tell,
    *,
    is_classified: bool,
) -> Outputs:
    """Run a network on one rank's share of each batch.

    Args:
        net: The network; with "fsdp" and "pipeline" each rank keeps its part of it.
        data: Inputs, or what `train` takes.
        options: With size and order of the batches.
        ranks: Who shares them. The lengths of a stream's batches are exchanged, parameters where
            the strategy is "fsdp", and layers' outputs where it is "pipeline".
        tell: Takes how many batches are done, and all of them if that is known.
        is_classified: Keep the number of the largest output instead of the outputs.

    Raises:
        ValueError: If the output has not one row per sample.
    """
    import torch

    batches = _computed(net, data, options, ranks)
    counts: list[int] = []
    pieces: list[Any] = []
    with torch.no_grad(), evaluating(batches.net):
        for num_rows, outputs in batches:
            counts.append(num_rows)
            for output in outputs:
                _demand_rows(output, num_rows)
                kept = output.argmax(1) if is_classified else output
                pieces.append(to_device(kept, "cpu"))
            if ranks.is_first:
                tell(len(counts), batches.num_batches)
    return Outputs(counts, _concatenated(pieces))


def _computed(net: Any, data: Any, options: TrainingOptions, ranks: Ranks) -> Any:
    """Return what yields this rank's outputs; nothing is computed yet."""
    if options.strategy == "pipeline" and not ranks.is_alone:
        from jupyter_mgpu.on_engine.training.strategies.pipelining.prediction import StagedOutputs

        return StagedOutputs(net, data, options, ranks, _inputs_of)
    return _SharedOutputs(net, data, options, ranks)


class _SharedOutputs:
    """Runs a network on one rank's share of each batch."""

    def __init__(self, net: Any, data: Any, options: TrainingOptions, ranks: Ranks) -> None:
        self._options = options
        self._ranks = ranks
        self._source = make_source(data, ranks, in_order(options), "data")
        self.num_batches = self._source.batches_per_epoch
        self._is_divided = options.strategy == "fsdp" and not ranks.is_alone
        if self._is_divided:
            divide(net.requires_grad_(False), ranks, ranks.waited)  # noqa: FBT003 - torch's order
        self.net = net if self._is_divided else _at(net, ranks.device)

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield for each batch its samples on this rank, and the output where there are any."""
        precision = Precision(self._options.precision, self._ranks.device)
        for (part,) in ahead(self._source.epoch(0), self._ranks.device):
            outputs = []
            if part.num_rows or self._is_divided:  # then all ranks call each layer together
                with precision.autocast():
                    outputs.append(_output(self.net, part.batch, self._options))
            yield part.num_rows, outputs if part.num_rows else []


def _at(net: Any, device: str) -> Any:
    """Return the network, or a copy of it if it is not where it must be."""
    first = next(net.parameters(), None)
    if first is None or str(first.device) == device:
        return net
    return copy.deepcopy(net).to(device)


def _output(net: Any, batch: Any, options: TrainingOptions) -> Any:
    if options.forward is not None:
        return options.forward(net, batch)[0]
    inputs = _inputs_of(batch)
    with types_told(net, inputs):
        return net(inputs)


def _inputs_of(batch: Any) -> Any:
    """Leave out the targets."""
    is_pair = isinstance(batch, Sequence) and len(batch) in (1, 2)
    return batch[0] if is_pair else batch


def _demand_rows(output: Any, num_rows: int) -> None:
    for leaf in leaves_of(output):
        shape = getattr(leaf, "shape", None)
        if not shape or shape[0] != num_rows:
            found = f"a {type(leaf).__name__}" if shape is None else f"of shape {tuple(shape)}"
            raise ValueError(
                f"An output is {found}, but it needs one row for each of the {num_rows} samples "
                "of the batch. One sample alone is a batch of one: x[None]."
            )


def _concatenated(pieces: Sequence[Any]) -> Any:
    import torch

    if not pieces:
        return None
    return map_leaves(lambda *leaves: torch.cat(leaves), *pieces)


def joined(parts: Sequence[Outputs]) -> Any:
    """Put the ranks' outputs together, in the order of the data.

    Raises:
        ValueError: If there are none.
    """
    import torch

    parts = [part for part in parts if part.values is not None]
    if not parts:
        raise ValueError("The data has no samples.")
    if len(parts) == 1:
        return parts[0].values

    def in_turn(*leaves: Any) -> Any:
        shares = [leaf.split(part.counts) for leaf, part in zip(leaves, parts, strict=True)]
        return torch.cat([share for batch in zip(*shares, strict=True) for share in batch])

    return map_leaves(in_turn, *(part.values for part in parts))
