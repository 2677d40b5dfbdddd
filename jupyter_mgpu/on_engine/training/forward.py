"""Runs a network on a batch."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.sources import to_device
from jupyter_mgpu.on_engine.training.trees import leaves_of


@contextlib.contextmanager
def evaluating(net: Any) -> Iterator[None]:
    """Let a network, and each part of it, be in evaluation mode."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def types_told(net: Any, inputs: Any) -> Iterator[None]:
    """Note on an error that inputs and network have floating-point numbers of different types."""
    try:
        yield
    except RuntimeError as error:
        given = {leaf.dtype for leaf in leaves_of(inputs) if _is_floating(leaf)}
        needed = {leaf.dtype for leaf in net.parameters() if _is_floating(leaf)}
        if given and needed and given.isdisjoint(needed):
            error.add_note(
                f"The inputs are {_names(given)}, the network is {_names(needed)}. "
                'x.float(), or x.astype("float32") of an array, makes float32 of inputs.'
            )
        raise


def _is_floating(leaf: Any) -> bool:
    return bool(getattr(getattr(leaf, "dtype", None), "is_floating_point", False))


def _names(types: set[Any]) -> str:
    return ", ".join(sorted(str(one).removeprefix("torch.") for one in types))


class Forward:
    """Takes a batch apart and runs a network on it.

    Args:
        options: With its own way to do so, where a batch is not (input, target).
        precision: In which the network runs.
        device: Where.
    """

    def __init__(self, options: TrainingOptions, precision: Precision, device: str) -> None:
        self._own = options.forward
        self._precision = precision
        self._device = device

    def __call__(self, net: Any, batch: Any) -> tuple[Any, Any]:
        """Return the network's output and the target."""
        batch = to_device(batch, self._device)
        with self._precision.autocast():
            if self._own is not None:
                return self._own(net, batch)
            inputs, target = taken_apart(batch)
            with types_told(net, inputs):
                return net(inputs), target


def taken_apart(batch: Any) -> tuple[Any, Any]:
    """Return the input and the target of a batch.

    Raises:
        TypeError: If it is no pair.
    """
    if isinstance(batch, Sequence) and len(batch) == 2:
        return batch[0], batch[1]
    size = f" of {len(batch)}" if isinstance(batch, Sequence | Mapping) else ""
    raise TypeError(
        f"A batch is a {type(batch).__name__}{size}, but (input, target) was expected. Give "
        "forward=, a function of (net, batch) that returns (output, target)."
    )
