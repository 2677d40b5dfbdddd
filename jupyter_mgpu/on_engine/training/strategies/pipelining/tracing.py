"""Reads a forward without data, and refuses what cannot be known from that.

torch.fx records what a forward does with its children and its input, while neither has numbers.
What it finds must hold for every batch, in training and in evaluation.
"""

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn

from jupyter_mgpu.on_engine import seeds


class UncuttableError(ValueError):
    """A forward cannot be taken apart; it says why."""


def traced(module: nn.Module) -> list[fx.Node]:
    """Return what a module's forward does: its input first, its output last.

    Raises:
        UncuttableError: If it cannot be read, or does not do the same each time.
    """
    if _has_hooks(module):
        raise UncuttableError(
            f"{_kind(module)} has hooks of its own, which belong to all of it; its children may "
            "have some"
        )
    found = {}
    for mode in (True, False):
        module.train(mode)
        with _reasons(module), _unchanged(module):
            found[mode] = _Tracer(module).trace(_Whole(module))
    if str(found[True]) != str(found[False]):
        raise UncuttableError(
            f"the forward of {_kind(module)} does other things in training than in evaluation "
            "(a function such as F.dropout; nn.Dropout can be cut)"
        )
    nodes = list(found[False].nodes)
    for node in nodes:
        if node.op == "get_attr" and "_tensor_constant" in str(node.target):
            raise UncuttableError(
                f"the forward of {_kind(module)} makes tensors of its own; register them as buffers"
            )
    return nodes


class _Whole(nn.Module):  # type: ignore[misc] # torch is untyped here
    """Calls a module with one value, so that its other arguments keep their defaults."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, value: Any) -> Any:
        if type(self.module) is nn.TransformerEncoder:
            return _encoded(self.module, value)
        return self.module(value)


def _encoded(encoder: nn.TransformerEncoder, value: Any) -> Any:
    """Do what torch's own forward does without masks, but for its looks at the value."""
    for layer in encoder.layers:
        value = layer(value)
    return value if encoder.norm is None else encoder.norm(value)


class _Tracer(fx.Tracer):  # type: ignore[misc] # as above
    """Records what one module does with its children."""

    def __init__(self, opened: nn.Module) -> None:
        super().__init__()
        self._opened = opened
        self._modes = _modes()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return m is not self._opened

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self._modes:
            raise UncuttableError(
                f"the forward of {_kind(self._opened)} changes torch's modes (no_grad, autocast) "
                "on its way"
            )
        return super().create_node(*args, **kwargs)


def _modes() -> tuple[bool, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


@contextlib.contextmanager
def _reasons(module: nn.Module) -> Iterator[None]:
    try:
        yield
    except UncuttableError:
        raise
    except Exception as error:
        raise UncuttableError(
            f"the forward of {_kind(module)} cannot be read without data: {error}"
        ) from error


@contextlib.contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Refuse a forward that would do something else the next time."""
    with seeds.preserved():
        random_state, attributes = _random_state(), _plain_attributes(module)
        yield
        if _random_state() != random_state:
            raise UncuttableError(
                f"the forward of {_kind(module)} draws random numbers of its own, beside its "
                "children"
            )
        changed = dict(_plain_attributes(module).items() - attributes.items())
        if changed:
            raise UncuttableError(
                f"the forward of {_kind(module)} changes its attribute {next(iter(changed))!r}"
            )


def _random_state() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    drawn = () if numpy is None else numpy.random.get_state(legacy=True)
    parts = (part.tobytes() if hasattr(part, "tobytes") else part for part in drawn)
    return (random.getstate(), torch.get_rng_state().numpy().tobytes(), *parts)


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    kinds = (bool, int, float, str)
    return {name: value for name, value in vars(module).items() if isinstance(value, kinds)}


def _has_hooks(module: nn.Module) -> bool:
    """Tell whether something else runs when a module is called."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind, None) for kind in kinds)


def name_in(target: object) -> str:
    """Return the name of what a node uses, in the module that was traced."""
    return str(target).removeprefix("module").removeprefix(".")


def _kind(module: nn.Module) -> str:
    return type(module).__name__
