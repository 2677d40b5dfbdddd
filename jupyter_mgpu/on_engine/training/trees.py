"""Tensors in nested tuples, lists and dicts."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def is_indexable(data: Any) -> bool:
    """Tell whether data is tensors and arrays, alone or in a tuple, list or dict."""
    if isinstance(data, Mapping):
        return bool(data) and all(map(is_indexable, data.values()))
    if isinstance(data, tuple | list):
        return bool(data) and all(map(is_indexable, data))
    return hasattr(data, "shape") and hasattr(data, "dtype") and len(data.shape) > 0


def count_rows(data: Any, what: str = "data") -> int:
    """Return the length that all tensors of the data share.

    Raises:
        ValueError: If they differ, or there is no sample.
    """
    lengths = sorted({len(leaf) for leaf in leaves_of(data)})
    if len(lengths) != 1:
        raise ValueError(f"The {what} has tensors of different lengths: {lengths}.")
    if not lengths[0]:
        raise ValueError(f"The {what} has no samples.")
    return lengths[0]


def leaves_of(data: Any) -> Iterator[Any]:
    """Yield each tensor of nested tuples, lists and dicts."""
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, tuple | list):
        for item in data:
            yield from leaves_of(item)
    else:
        yield data


def map_leaves(function: Callable[..., Any], data: Any, *others: Any) -> Any:
    """Apply a function to each tensor of nested tuples, lists and dicts.

    Args:
        function: Takes a tensor of `data` and those at the same place in the others.
        data: Nested tensors.
        *others: Nested in the same way.
    """
    if isinstance(data, Mapping):
        pairs = [
            (key, map_leaves(function, value, *(other[key] for other in others)))
            for key, value in data.items()
        ]
        return type(data)(pairs)  # type: ignore[call-arg] # as each mapping does
    if isinstance(data, tuple | list):
        rows = zip(data, *others, strict=True)
        items = [map_leaves(function, *row) for row in rows]
        is_named = hasattr(data, "_fields")
        return type(data)(*items) if is_named else type(data)(items)
    return function(data, *others)


def as_tensors(data: Any) -> Any:
    """Let arrays be tensors on the same memory."""
    import torch

    return map_leaves(torch.as_tensor, data)
