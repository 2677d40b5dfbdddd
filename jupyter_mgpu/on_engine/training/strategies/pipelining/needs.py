"""Which data each rank loads: the first one the inputs, the last one the targets."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from jupyter_mgpu.on_engine.training.batches import Part
from jupyter_mgpu.on_engine.training.forward import taken_apart
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.sources import Source, Step
from jupyter_mgpu.on_engine.training.trees import count_rows, is_indexable, leaves_of


def needed(data: Any, what: str, *, inputs: bool, targets: bool) -> Any:
    """Leave out of data what this rank does not use, as far as it is not loaded together.

    Args:
        data: As `train` takes it.
        what: What it is called in an error.
        inputs: Whether the inputs are used.
        targets: Whether the targets are.

    Raises:
        TypeError: If it is no pair.
    """
    if is_indexable(data):
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise TypeError(
                f"strategy is 'pipeline', but the {what} is a {type(data).__name__} of tensors. "
                "It must be (inputs, targets): the first rank takes one, the last the other."
            )
        count_rows(data, what)
        parts = zip(data, (inputs, targets), strict=True)
        return tuple(part if is_used else without_samples(part) for part, is_used in parts)
    return data if inputs or targets else without_samples(data)


def without_samples(data: Any) -> Any:
    """Return data of the same length and order with nothing in it; a stream stays as it is."""
    if is_indexable(data):
        return torch.empty((len(next(leaves_of(data))), 0))
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return data
    if isinstance(data, DataLoader):
        return DataLoader(
            Nothing(len(dataset)), data.batch_size, sampler=data.sampler, drop_last=data.drop_last
        )
    return Nothing(len(dataset))


def everybody(ranks: Ranks) -> Ranks:
    """Return ranks that all see whole batches; a sampler's order is the first one's."""
    return replace(ranks, rank=0, loads=(1.0, *[0.0] * (ranks.world_size - 1)))


class Nothing(torch.utils.data.Dataset):  # type: ignore[misc] # torch is untyped here
    """As many samples as another data set has, with nothing in them."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return torch.empty(0), torch.empty(0)


class OwnHalves:
    """Yields of each batch what this rank uses.

    Args:
        source: Of whole batches.
        inputs: Whether the inputs are used.
        targets: Whether the targets are.
    """

    def __init__(self, source: Source, *, inputs: bool, targets: bool) -> None:
        self._source = source
        self._used = (inputs, targets)
        self.batches_per_epoch = source.batches_per_epoch

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Step]:
        """Yield the steps of one epoch."""
        for step in self._source.epoch(number, skip=skip):
            yield [replace(part, batch=self._half(part)) for part in step]

    def _half(self, part: Part) -> Any:
        pair = taken_apart(part.batch)
        halves = zip(pair, self._used, strict=True)
        return tuple(half if is_used else part.num_rows for half, is_used in halves)
