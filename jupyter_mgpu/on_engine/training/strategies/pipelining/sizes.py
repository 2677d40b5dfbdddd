"""How much memory each link of a network takes, found out without computing."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from jupyter_mgpu.on_engine.training.strategies.pipelining.links import Link
from jupyter_mgpu.on_engine.training.trees import leaves_of, map_leaves

COPIES = 4
"""Of what is trained: the weights, their gradients, and two averages of an optimizer."""
ROWS = 2
"""Normalization needs more than one."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a link takes.

    Attributes:
        num_bytes: Of its parameters with all that training keeps of them, and of its outputs.
        ends_in_tensor: Whether its output can be sent: one tensor; True where it is not known.
    """

    num_bytes: int
    ends_in_tensor: bool = True


def sizes_of(
    skeleton: nn.Module, links: Sequence[Link], example: Any, batch_rows: int
) -> list[Size]:
    """Measure the links.

    Args:
        skeleton: The network without numbers.
        links: All of them.
        example: Inputs of a few samples; None if there are none to look at.
        batch_rows: Samples whose outputs are kept at the same time.
    """
    weights = [_weights(skeleton, link) for link in links]
    # Not every layer can tell its shapes without numbers; then the weights have to do.
    with contextlib.suppress(Exception):
        if example is not None:
            outputs = _outputs(skeleton, links, example)
            return [
                Size(weight + size.num_bytes * batch_rows // ROWS, size.ends_in_tensor)
                for weight, size in zip(weights, outputs, strict=True)
            ]
    return [Size(weight) for weight in weights]


def _weights(skeleton: nn.Module, link: Link) -> int:
    tensors = {id(one): one for one in link.tensors(skeleton)}
    return sum(
        one.numel() * one.element_size() * (COPIES if one.requires_grad else 1)
        for one in tensors.values()
    )


def _outputs(skeleton: nn.Module, links: Sequence[Link], example: Any) -> list[Size]:
    """Let shapes go through the network."""
    seen: list[int] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001 - torch's hook
        tensors = [leaf for leaf in leaves_of(output) if isinstance(leaf, torch.Tensor)]
        seen.append(sum(leaf.numel() * leaf.element_size() for leaf in tensors))

    layers = [module for module in skeleton.modules() if next(module.children(), None) is None]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    value = map_leaves(_shape_of, example)
    found = []
    try:
        with torch.no_grad():
            for link in links:
                seen.clear()
                value = link.bound(skeleton)(value)
                found.append(Size(sum(seen), isinstance(value, torch.Tensor)))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _shape_of(leaf: Any) -> Any:
    return torch.empty((ROWS, *leaf.shape[1:]), dtype=leaf.dtype, device="meta")
