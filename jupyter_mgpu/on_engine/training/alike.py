"""Data that differs between ranks: they would wait for each other, or only some would fail."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from jupyter_mgpu.on_engine.training.batches import Part
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.trees import leaves_of


def demand_equal_lengths(data: Any, ranks: Ranks, what: str) -> None:
    """Refuse a data set that is longer on some ranks; all ranks must call it.

    Args:
        data: What `train` takes.
        ranks: Who trains.
        what: What the data is called in an error.

    Raises:
        ValueError: It says how many samples each rank has.
    """
    from torch.utils.data import DataLoader

    data = data.dataset if isinstance(data, DataLoader) else data
    lengths = ranks.gather(len(data) if hasattr(data, "__len__") else None)
    if len(set(lengths)) > 1:
        raise ValueError(
            f"The {what} has {lengths} samples on the ranks, but it must be the same on all of "
            "them: train divides it. Do not divide it by rank."
        )


class FirstBatch:
    """Explains an error of the first step that comes from other samples on this rank.

    Args:
        ranks: Who trains.
        is_divided: Whether each of them has a share of the samples, and so the same kind of data.
    """

    def __init__(self, ranks: Ranks, *, is_divided: bool) -> None:
        self._ranks = ranks
        self._is_over = ranks.is_alone or not is_divided

    @contextlib.contextmanager
    def explained(self, parts: Sequence[Part]) -> Iterator[None]:
        """Note on an error of the first step how the ranks' samples differ in shape."""
        if self._is_over:
            yield
            return
        self._is_over = True
        shapes = self._ranks.gather([_shapes(part.batch) for part in parts[:1]])
        try:
            yield
        except Exception as error:
            if any(found != shapes[0] for found in shapes):
                found = "; ".join(
                    f"rank {rank}: {_words(found)}" for rank, found in enumerate(shapes)
                )
                error.add_note(f"One sample has another shape on some ranks: {found}.")
            raise


def _shapes(batch: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape[1:]) for leaf in leaves_of(batch) if hasattr(leaf, "shape")]


def _words(shapes: list[list[tuple[int, ...]]]) -> str:
    return ", ".join(str(list(shape)) for part in shapes for shape in part)
