"""Where samples come from: tensors and arrays, data sets, loaders and streams."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from jupyter_mgpu.on_engine import seeds
from jupyter_mgpu.on_engine.training.batches import Order, Part, order_of, parts_of
from jupyter_mgpu.on_engine.training.copying import CopyStream, is_gpu, pinned
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.trees import as_tensors, count_rows, is_indexable, map_leaves

Step = list[Part]
"""The parts of one batch that this rank computes, one after the other."""


class Source(Protocol):
    """Yields this rank's parts of each batch."""

    batches_per_epoch: int | None

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Step]:
        """Yield the steps of one epoch."""


def resolved(options: TrainingOptions, data: Any, ranks: Ranks) -> TrainingOptions:
    """Fill in what the options leave open: a DataLoader's own settings; and scale them.

    Raises:
        ValueError: If a DataLoader forms its batches in a way of its own.
    """
    from torch.utils.data import DataLoader

    taken: dict[str, Any] = {}
    if isinstance(data, DataLoader):
        if data.batch_size is None:
            raise ValueError(
                "The DataLoader has a batch_sampler of its own, or none, but train forms the "
                "batches of all ranks. Give it batch_size= and sampler= instead."
            )
        own = {"mini_batch_size": data.batch_size, "drop_last": data.drop_last}
        taken = {name: value for name, value in own.items() if getattr(options, name) is None}
    if options.scale == "linear":
        size = taken.get("mini_batch_size", options.batch_size)
        taken["mini_batch_size"] = size * ranks.world_size
        taken["learning_rate"] = options.rate * ranks.world_size
    return replace(options, **taken)


def in_order(options: TrainingOptions) -> TrainingOptions:
    """Let every sample come once, in the order of the data."""
    return replace(options, shuffle="never", drop_last=False, accumulate=1)


def make_source(data: Any, ranks: Ranks, options: TrainingOptions, what: str) -> Source:
    """Choose the source for some data.

    Args:
        data: `(inputs, targets)` or another tuple, list or dict of tensors and arrays of equal
            length; a map-style or iterable Dataset; or a DataLoader, whose settings are taken over.
        ranks: Who shares the batches.
        options: With size and order of the batches.
        what: What the data is called in an error.

    Raises:
        ValueError: If there is no sample, or the tensors differ in length.
        TypeError: If it is none of these.
    """
    from torch.utils.data import DataLoader, IterableDataset

    if is_indexable(data):
        order = order_of(count_rows(data, what), options, ranks)
        return TensorSource(as_tensors(data), order, ranks, options.accumulate)
    settings: dict[str, Any] = {"num_workers": options.num_workers, "pin_memory": False}
    sampler = None
    if isinstance(data, DataLoader):
        settings = _settings_of(data)
        # A stream has none; an order that was asked for goes before the loader's.
        sampler = data.sampler if options.shuffle is None else None
        data = data.dataset
    settings["pin_memory"] |= is_gpu(ranks.device)
    if isinstance(data, IterableDataset):
        return StreamSource(data, ranks, options, settings)
    if isinstance(data, tuple):  # such as two lists, which would be a Dataset of two samples
        kinds = ", ".join(type(part).__name__ for part in data)
        raise TypeError(
            f"The {what} is a tuple of {kinds}, but it must be tensors or arrays of equal length. "
            "numpy.asarray makes an array of a list."
        )
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        size = len(data) if sampler is None else len(sampler)
        if not size:
            raise ValueError(f"The {what} has no samples.")
        order = order_of(size, options, ranks, sampler)
        return DatasetSource(data, order, ranks, options.accumulate, settings)
    raise TypeError(
        f"The {what} is a {type(data).__name__}, but it must be tensors or arrays of equal "
        "length, a Dataset or a DataLoader."
    )


def is_stream(data: Any) -> bool:
    """Tell whether data is an iterable data set, of which the ranks compare what they read."""
    from torch.utils.data import DataLoader, IterableDataset

    return isinstance(data.dataset if isinstance(data, DataLoader) else data, IterableDataset)


def _settings_of(loader: Any) -> dict[str, Any]:
    settings = {
        name: getattr(loader, name)
        for name in ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    }
    if loader.num_workers:
        settings["multiprocessing_context"] = loader.multiprocessing_context
        settings["prefetch_factor"] = loader.prefetch_factor
    return settings


def ahead(steps: Iterator[Step], device: str) -> Iterator[Step]:
    """Move each step's data to the device while the one before is computed there."""
    stream = CopyStream(device)
    before: tuple[Step, Any] | None = None
    for step in steps:
        with stream.copying():
            moved = [replace(part, batch=to_device(part.batch, device)) for part in step]
        now = moved, stream.mark()
        if before is not None:
            yield _arrived(stream, *before)
        before = now
    if before is not None:
        yield _arrived(stream, *before)


def _arrived(stream: CopyStream, step: Step, mark: Any) -> Step:
    stream.wait(mark, [part.batch for part in step])
    return step


def to_device(batch: Any, device: str) -> Any:
    """Move the tensors of a batch to where it is computed."""

    def move(leaf: Any) -> Any:
        return leaf.to(device, non_blocking=True) if hasattr(leaf, "to") else leaf

    return map_leaves(move, batch)


class TensorSource:
    """Rows of tensors in memory."""

    def __init__(self, tensors: Any, order: Order, ranks: Ranks, num_parts: int) -> None:
        self._tensors = tensors
        self._order = order
        self._ranks = ranks
        self._num_parts = num_parts
        self.batches_per_epoch: int | None = len(order)

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Step]:
        """Yield the steps of one epoch."""
        for rows in self._order.epoch(number, skip=skip):
            parts = parts_of(rows, self._ranks, self._num_parts)
            yield [Part(self._take(part), count, len(rows)) for part, count in parts]

    def _take(self, rows: Any) -> Any:
        taken = map_leaves(lambda leaf: leaf[rows.to(leaf.device)], self._tensors)
        return pinned(taken, self._ranks.device)


class DatasetSource:
    """Samples of a map-style data set, through torch's loader."""

    def __init__(
        self, dataset: Any, order: Order, ranks: Ranks, num_parts: int, settings: dict[str, Any]
    ) -> None:
        import torch
        from torch.utils.data import DataLoader

        self._order = order
        self._ranks = ranks
        self._num_parts = num_parts
        self._wanted: list[tuple[int, int, list[int]]] = []  # what the loader's next round reads
        self._loader = DataLoader(
            _SeededBatches(dataset),
            batch_sampler=self._wanted,
            persistent_workers=settings["num_workers"] > 0,
            generator=torch.Generator(),  # what the loader draws must not move dropout's
            **settings,
        )
        self.batches_per_epoch: int | None = len(order)

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Step]:
        """Yield the steps of one epoch."""
        plan = [
            (len(rows), parts_of(rows, self._ranks, self._num_parts))
            for rows in self._order.epoch(number, skip=skip)
        ]
        seed, ranks = self._order.seed_of(number), self._ranks
        wanted = [
            ((step * self._num_parts + part) * ranks.world_size + ranks.rank, rows.tolist())
            for step, (_, parts) in enumerate(plan, skip)
            for part, (rows, _) in enumerate(parts)
        ]
        self._wanted[:] = [(seed, place, rows) for place, rows in wanted]
        loaded = iter(self._loader)
        for batch_rows, parts in plan:
            yield [Part(next(loaded), count, batch_rows) for _, count in parts]


class _SeededBatches:
    """A data set that draws the same random numbers for a batch, whoever loads it and when."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, wanted: tuple[int, int, list[int]]) -> Any:
        seed, place, rows = wanted
        with seeds.preserved():  # dropout goes on where it was
            seeds.seed_item(seed, place)
            if hasattr(self._dataset, "__getitems__"):
                return self._dataset.__getitems__(rows)
            return [self._dataset[row] for row in rows]


class StreamSource:
    """Samples of an iterable data set: every rank reads all, and keeps its share of each batch."""

    batches_per_epoch: int | None = None

    def __init__(
        self, dataset: Any, ranks: Ranks, options: TrainingOptions, settings: dict[str, Any]
    ) -> None:
        self._dataset = dataset
        self._ranks = ranks
        self._options = options
        self._settings = settings

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Step]:
        """Yield the steps of one epoch; the stream decides its own order."""
        import torch
        from torch.utils.data import DataLoader, default_collate

        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(number)
        # Whole batches are pinned, not single samples.
        settings = {**self._settings, "collate_fn": _first, "pin_memory": False}
        collate = self._settings.get("collate_fn") or default_collate
        options = self._options
        # A stream of its own: what the loader draws must not move dropout's.
        stream = torch.Generator().manual_seed(options.seed + number)
        samples = iter(DataLoader(self._dataset, batch_size=1, generator=stream, **settings))
        for place in itertools.count():
            batch = list(itertools.islice(samples, options.batch_size))
            self._demand_equal(len(batch), place)
            is_partial = len(batch) < options.batch_size
            if not batch or (is_partial and options.drops_last and place > 0):
                return
            if place < skip:
                continue
            rows = torch.arange(len(batch))
            parts = [
                (pinned(collate(_pick(batch, part)), self._ranks.device), count)
                for part, count in parts_of(rows, self._ranks, options.accumulate)
            ]
            yield [Part(part, count, len(batch)) for part, count in parts]

    def _demand_equal(self, num_samples: int, place: int) -> None:
        """Refuse a stream that is not the same on all ranks: they would wait for each other.

        Raises:
            ValueError: It says how many samples each rank got.
        """
        import torch

        if self._ranks.is_alone:
            return
        found = torch.tensor([num_samples, num_samples**2], device=self._ranks.device)
        total, squares = self._ranks.sum(found).tolist()
        if squares * self._ranks.world_size != total**2:
            counts = self._ranks.gather(num_samples)
            raise ValueError(
                f"Batch {place} of the iterable data set has {counts} samples on the ranks, but "
                "it must be the same on all of them: train divides it. Do not divide it by rank."
            )


def _first(samples: Sequence[Any]) -> Any:
    return samples[0]


def _pick(batch: Sequence[Any], rows: Any) -> list[Any]:
    return [batch[row] for row in rows.tolist()]
