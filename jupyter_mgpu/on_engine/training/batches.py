"""The batches of an epoch: which samples, in which order, the same for any number of ranks."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.on_engine import seeds
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks, split

_EPOCH_STRIDE = 1_000_003  # a prime: seeds of other epochs and of other trainings differ


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a data set of known size.

    Attributes:
        num_rows: Samples in it.
        batch_size: Samples per batch, over all ranks together.
        shuffle: "every-epoch", "once" or "never".
        drop_last: Leave out the partial batch at the end, unless it is the only one.
        seed: Of the order.
        ranks: Who shares the batches.
        sampler: A DataLoader's own order, or None.
    """

    num_rows: int
    batch_size: int
    shuffle: str
    drop_last: bool
    seed: int
    ranks: Ranks
    sampler: Any = None

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        whole, rest = divmod(self.num_rows, self.batch_size)
        return whole + (rest > 0 and (not self.drop_last or whole == 0))

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Any]:
        """Yield the row numbers of each batch, as tensors.

        Args:
            number: The epoch, from 0.
            skip: So many batches are left out at the start, as a resumed training has seen them.
        """
        rows = self._sampled(number) if self.sampler is not None else self._shuffled(number)
        for place in range(skip, len(self)):
            yield rows[place * self.batch_size : (place + 1) * self.batch_size]

    def seed_of(self, epoch: int) -> int:
        """Return the seed of what is random in an epoch."""
        return self.seed * _EPOCH_STRIDE + epoch

    def _shuffled(self, epoch: int) -> Any:
        import torch

        if self.shuffle == "never":
            return torch.arange(self.num_rows)
        # Another epoch, another order, unless one is asked for.
        seed = self.seed_of(epoch if self.shuffle == "every-epoch" else 0)
        stream = torch.Generator().manual_seed(seed)
        return torch.randperm(self.num_rows, generator=stream)

    def _sampled(self, epoch: int) -> Any:
        """Ask the sampler, on one rank: others might draw other numbers."""
        import torch

        with seeds.preserved():
            seeds.seed_item(self.seed_of(epoch), 0)
            rows = list(self.sampler) if self.ranks.is_first else None
        return torch.tensor(self.ranks.gather(rows)[0])


def order_of(num_rows: int, options: TrainingOptions, ranks: Ranks, sampler: Any = None) -> Order:
    """Return the order that the options ask for."""
    return Order(
        num_rows,
        options.batch_size,
        options.shuffle or "every-epoch",
        options.drops_last,
        options.seed,
        ranks,
        sampler,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """What this rank computes at once: a share of a batch, or a piece of that share.

    Attributes:
        batch: Its samples, as the network and the loss take them.
        num_rows: How many samples count; 0 where others stand in for an empty share.
        batch_rows: Samples of the whole batch, over all ranks.
    """

    batch: Any
    num_rows: int
    batch_rows: int

    @property
    def weight(self) -> float:
        """The share of the whole batch."""
        return self.num_rows / self.batch_rows


STAND_INS = 2
"""A rank without a sample computes on so many of others, with weight 0: it must take part in the
exchange of gradients, and batch normalization needs two."""


def parts_of(rows: Any, ranks: Ranks, num_parts: int) -> list[tuple[Any, int]]:
    """Cut this rank's share of a batch into parts, as many on every rank.

    Args:
        rows: The row numbers of the whole batch.
        ranks: Who shares it.
        num_parts: At most so many parts.

    Returns:
        Row numbers, and how many of them count.
    """
    bounds = split(len(rows), ranks.loads)
    largest = max(stop - start for start, stop in itertools.pairwise(bounds))
    mine = rows[bounds[ranks.rank] : bounds[ranks.rank + 1]]
    parts = mine.tensor_split(min(num_parts, largest))
    return [(part, len(part)) if len(part) else (_stand_ins(rows), 0) for part in parts]


def _stand_ins(rows: Any) -> Any:
    return rows[:STAND_INS] if len(rows) >= STAND_INS else rows[:1].repeat(STAND_INS)
