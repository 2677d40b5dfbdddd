"""Where samples come from: tensors and arrays, data sets, loaders and streams."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from jupyter_mgpu.on_engine.training.batches import Order, Part, parts_of
from jupyter_mgpu.on_engine.training.ranks import Ranks

Step = list[Part]
"""The parts of one batch that this rank computes, one after the other."""


class Source(Protocol):
    """Yields this rank's parts of each batch."""

    batches_per_epoch: int | None

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Step]:
        """Yield the steps of one epoch."""


def make_source(
    data: Any,
    ranks: Ranks,
    *,
    batch_size: int,
    shuffle: str,
    drop_last: bool,
    seed: int,
    num_workers: int,
    num_parts: int = 1,
) -> Source:
    """Choose the source for some data.

    Args:
        data: `(inputs, targets)` or another tuple, list or dict of tensors and arrays of equal
            length; a map-style or iterable Dataset; or a DataLoader, whose settings are taken over.
        ranks: Who shares the batches.
        batch_size: Samples per batch, over all ranks together.
        shuffle: "every-epoch", "once" or "never".
        drop_last: Leave out a partial last batch.
        seed: Of the order.
        num_workers: Processes of this rank that load data.
        num_parts: Parts in which a rank computes its share.

    Raises:
        ValueError: If there is no sample, or the tensors differ in length.
        TypeError: If it is none of these.
    """
    from torch.utils.data import DataLoader, IterableDataset

    if is_indexable(data):
        num_rows = count_rows(data)
        order = Order(num_rows, batch_size, shuffle, drop_last, seed)
        return TensorSource(as_tensors(data), order, ranks, num_parts)
    settings: dict[str, Any] = {"num_workers": num_workers}
    if isinstance(data, DataLoader):
        settings = _settings_of(data)
        data = data.dataset
    if isinstance(data, IterableDataset):
        return StreamSource(data, ranks, batch_size, num_parts, settings, drop_last=drop_last)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        if not len(data):
            raise ValueError("The data has no samples.")
        order = Order(len(data), batch_size, shuffle, drop_last, seed)
        return DatasetSource(data, order, ranks, num_parts, settings)
    raise TypeError(
        f"The data is a {type(data).__name__}, but it must be tensors or arrays of equal length, "
        "a Dataset or a DataLoader."
    )


def _settings_of(loader: Any) -> dict[str, Any]:
    settings = {
        name: getattr(loader, name)
        for name in ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    }
    if loader.num_workers:
        settings["multiprocessing_context"] = loader.multiprocessing_context
        settings["prefetch_factor"] = loader.prefetch_factor
    return settings


def is_indexable(data: Any) -> bool:
    """Tell whether data is tensors and arrays, alone or in a tuple, list or dict."""
    if isinstance(data, Mapping):
        return bool(data) and all(map(is_indexable, data.values()))
    if isinstance(data, tuple | list):
        return bool(data) and all(map(is_indexable, data))
    return hasattr(data, "shape") and hasattr(data, "dtype") and len(data.shape) > 0


def count_rows(data: Any) -> int:
    """Return the length that all tensors of the data share.

    Raises:
        ValueError: If they differ, or there is no sample.
    """
    lengths = sorted({len(leaf) for leaf in _leaves(data)})
    if len(lengths) != 1:
        raise ValueError(f"The data has tensors of different lengths: {lengths}.")
    if not lengths[0]:
        raise ValueError("The data has no samples.")
    return lengths[0]


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, tuple | list):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def map_leaves(function: Callable[[Any], Any], data: Any) -> Any:
    """Apply a function to each tensor of nested tuples, lists and dicts."""
    if isinstance(data, Mapping):
        return type(data)((key, map_leaves(function, value)) for key, value in data.items())  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_leaves(function, item) for item in data))
    if isinstance(data, tuple | list):
        return type(data)(map_leaves(function, item) for item in data)
    return function(data)


def as_tensors(data: Any) -> Any:
    """Let arrays be tensors on the same memory."""
    import torch

    return map_leaves(torch.as_tensor, data)


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
        return map_leaves(lambda leaf: leaf[rows.to(leaf.device)], self._tensors)


class DatasetSource:
    """Samples of a map-style data set, through torch's loader."""

    def __init__(
        self, dataset: Any, order: Order, ranks: Ranks, num_parts: int, settings: dict[str, Any]
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._ranks = ranks
        self._num_parts = num_parts
        self._settings = settings
        self.batches_per_epoch: int | None = len(order)

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Step]:
        """Yield the steps of one epoch."""
        import torch
        from torch.utils.data import DataLoader

        plan = [
            (len(rows), parts_of(rows, self._ranks, self._num_parts))
            for rows in self._order.epoch(number, skip=skip)
        ]
        wanted = [rows.tolist() for _, parts in plan for rows, _ in parts]
        # A stream of its own: what the loader draws must not move dropout's.
        stream = torch.Generator().manual_seed(number)
        loaded = iter(
            DataLoader(self._dataset, batch_sampler=wanted, generator=stream, **self._settings)
        )
        for batch_rows, parts in plan:
            yield [Part(next(loaded), count, batch_rows) for _, count in parts]


class StreamSource:
    """Samples of an iterable data set: every rank reads all, and keeps its share of each batch."""

    batches_per_epoch: int | None = None

    def __init__(
        self,
        dataset: Any,
        ranks: Ranks,
        batch_size: int,
        num_parts: int,
        settings: dict[str, Any],
        *,
        drop_last: bool,
    ) -> None:
        self._dataset = dataset
        self._ranks = ranks
        self._batch_size = batch_size
        self._num_parts = num_parts
        self._settings = settings
        self._drop_last = drop_last

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Step]:
        """Yield the steps of one epoch; the stream decides its own order."""
        import torch
        from torch.utils.data import DataLoader, default_collate

        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(number)
        settings = {**self._settings, "collate_fn": _first}
        collate = self._settings.get("collate_fn") or default_collate
        stream = torch.Generator().manual_seed(number)
        samples = iter(DataLoader(self._dataset, batch_size=1, generator=stream, **settings))
        for place in itertools.count():
            batch = list(itertools.islice(samples, self._batch_size))
            is_partial = len(batch) < self._batch_size
            if not batch or (is_partial and self._drop_last and place > 0):
                return
            if place < skip:
                continue
            rows = torch.arange(len(batch))
            parts = parts_of(rows, self._ranks, self._num_parts)
            yield [Part(collate(_pick(batch, part)), count, len(batch)) for part, count in parts]


def _first(samples: Sequence[Any]) -> Any:
    return samples[0]


def _pick(batch: Sequence[Any], rows: Any) -> list[Any]:
    return [batch[row] for row in rows.tolist()]
