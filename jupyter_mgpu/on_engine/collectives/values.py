"""How comm carries a value: as a tensor where that is possible, else as a pickle."""

import operator
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import cloudpickle

Reducer = Callable[[Any, Any], Any]

REDUCERS: dict[str, Reducer] = {
    "sum": operator.add,
    "mean": operator.add,
    "product": operator.mul,
    "min": min,
    "max": max,
}


def is_tensor(value: Any) -> bool:
    """Say whether a value is a dense tensor."""
    torch = sys.modules["torch"]
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def to_tensor(value: Any) -> Any | None:
    """Return a contiguous copy of a tensor or array as a tensor, or None for anything else."""
    torch = sys.modules["torch"]
    if is_tensor(value):
        return value.detach().clone(memory_format=torch.contiguous_format)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return None
    try:
        return torch.from_numpy(numpy.array(value, order="C"))
    except TypeError:
        return None  # a dtype that torch does not have


def like(tensor: Any, original: Any) -> Any:
    """Give a tensor the form of the value that it stands for: array or tensor, and its device."""
    return tensor.to(original.device) if is_tensor(original) else tensor.numpy(force=True)


def describe(tensor: Any | None) -> dict[str, Any]:
    """Describe a value such that two ranks can compare: equal forms fit together."""
    if tensor is None:
        return {"form": "an object", "dtype": None, "shape": None, "device": "cpu"}
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape, device = tuple(tensor.shape), tensor.device.type
    form = f"{dtype} of shape {shape} on {device}"
    return {"form": form, "dtype": dtype, "shape": shape, "device": device}


def dump(value: Any) -> Any:
    """Pickle a value into a tensor of bytes."""
    torch = sys.modules["torch"]
    return torch.frombuffer(bytearray(cloudpickle.dumps(value)), dtype=torch.uint8)


def unpickle(tensor: Any) -> Any:
    """Unpickle a tensor of bytes."""
    return pickle.loads(tensor.cpu().numpy().tobytes())


def reduce_values(values: Sequence[Any], operation: str) -> Any:
    """Reduce numbers or other objects in the order of the ranks."""
    total = reduce(REDUCERS[operation], values)
    return total / len(values) if operation == "mean" else total


def widened(tensor: Any) -> Any:
    """Return the tensor in a type that all backends reduce."""
    torch = sys.modules["torch"]
    return tensor.to(torch.int64) if tensor.dtype in (torch.bool, torch.int16) else tensor


def narrowed(tensor: Any, original: Any, operation: str) -> Any:
    """Undo `widened` where the result fits: a sum of bools stays a number."""
    torch = sys.modules["torch"]
    keeps = original.dtype is torch.int16 or operation in ("min", "max", "product")
    return tensor.to(original.dtype) if keeps and tensor.dtype != original.dtype else tensor
