"""Takes a network's forward apart into links: pieces that follow each other, one value between.

The forward is traced without data, in training and in evaluation. Its children are called by name,
and what it does between them is kept as it is. A child that can be taken apart itself is.
"""

import contextlib
import copy
import operator
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from jupyter_mgpu.on_engine import seeds


class UncuttableError(ValueError):
    """A forward cannot be taken apart; it says why."""


@dataclass(frozen=True, slots=True)
class Link:
    """A piece of a forward.

    Attributes:
        name: The child that it begins with, as in `net.named_modules()`.
        modules: The names of all children that it calls.
        attributes: The names of parameters and buffers that it reads beside them.
    """

    name: str
    modules: tuple[str, ...]
    attributes: tuple[str, ...]
    _prefix: str
    _nodes: tuple[Any, ...]

    def tensors(self, net: nn.Module) -> Iterator[torch.Tensor]:
        """Yield the parameters and buffers that it uses; some more than once."""
        for name in self.modules:
            module = net.get_submodule(name)
            yield from module.parameters()
            yield from module.buffers()
        for name in self.attributes:
            yield operator.attrgetter(name)(net)

    def bound(self, net: nn.Module) -> "Bound":
        """Let it run with a network's children."""
        return Bound(net, self._prefix, self._nodes)


class Bound:
    """A link with the children of a network, called with one value."""

    def __init__(self, net: nn.Module, prefix: str, nodes: Sequence[fx.Node]) -> None:
        self._nodes = nodes
        self._root = net.get_submodule(prefix)
        self._modules = {
            node: net.get_submodule(_joined(prefix, node.target))
            for node in nodes
            if node.op == "call_module"
        }

    def __call__(self, value: Any) -> Any:
        """Compute its output."""
        known: dict[fx.Node, Any] = {}

        def found(node: fx.Node) -> Any:
            return known.get(node, value)  # the one value from outside

        for node in self._nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), found)
            if node.op == "call_module":
                known[node] = self._modules[node](*args, **kwargs)
            elif node.op == "call_method":
                known[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
            elif node.op == "call_function":
                known[node] = node.target(*args, **kwargs)
            elif node.op == "get_attr":
                known[node] = self._attribute(node)
            else:  # the output
                known[node] = args[0]
        return known[self._nodes[-1]]

    def _attribute(self, node: fx.Node) -> Any:
        return operator.attrgetter(_joined("", node.target))(self._root)


def links_of(net: nn.Module) -> list[Link]:
    """Take a network's forward apart.

    Args:
        net: The network; see `skeleton_of`.

    Raises:
        UncuttableError: If that cannot be done.
    """
    return _links(net, net, "")


def skeleton_of(net: nn.Module) -> nn.Module:
    """Return a copy of a network without the numbers in it."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(
            torch.empty_like(parameter, device="meta"), parameter.requires_grad
        )
        for parameter in net.parameters()
    }
    memo |= {id(buffer): torch.empty_like(buffer, device="meta") for buffer in net.buffers()}
    return copy.deepcopy(net, memo)


def _links(net: nn.Module, module: nn.Module, prefix: str) -> list[Link]:
    nodes = _traced(module)
    found: list[Link] = []
    for piece in _pieces(nodes):
        called = [str(node.target) for node in piece if node.op == "call_module"]
        inner: list[Link] = []
        if _is_one_call(piece):
            inner = _opened(net, _joined(prefix, called[0]))
        read = [str(node.target) for node in piece if node.op == "get_attr"]
        found += inner or [
            Link(
                _joined(prefix, called[0]) if called else prefix,
                tuple(_joined(prefix, name) for name in called),
                tuple(_joined(prefix, name) for name in read),
                prefix,
                tuple(piece),
            )
        ]
    return found


def _opened(net: nn.Module, name: str) -> list[Link]:
    """Take a child apart; an empty list if it is to stay whole."""
    child = net.get_submodule(name)
    if next(child.children(), None) is None or _has_hooks(child):
        return []
    try:
        found = _links(net, child, name)
    except UncuttableError:
        return []
    return found if len(found) > 1 else []


def _is_one_call(piece: Sequence[fx.Node]) -> bool:
    """Tell whether a piece is nothing but the call of a child."""
    call, *rest = piece
    return call.op == "call_module" and all(
        node.op == "output" and node.args[0] is call for node in rest
    )


def _has_hooks(module: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind, None) for kind in kinds)


def _pieces(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Cut before each call of a child where one value alone goes on."""
    place = {node: number for number, node in enumerate(nodes)}
    pieces: list[list[fx.Node]] = [[]]
    reach = 0  # how far values from before the newest one are used
    for number, node in enumerate(nodes[1:], 1):
        if number > 1:
            users = nodes[number - 2].users
            reach = max([reach, *(place[user] for user in users)])
            if node.op == "call_module" and reach < number:
                pieces.append([])
        pieces[-1].append(node)
    return pieces


def _traced(module: nn.Module) -> list[fx.Node]:
    """Trace a forward; both modes must do the same."""
    found = {}
    for mode in (True, False):
        module.train(mode)
        with _reasons(module), _no_draws(module):
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
def _no_draws(module: nn.Module) -> Iterator[None]:
    """Refuse a forward that draws random numbers: they would stay as they were drawn now."""
    with seeds.preserved():
        before = _random_state()
        yield
        if _random_state() != before:
            raise UncuttableError(
                f"the forward of {_kind(module)} draws random numbers of its own, beside its "
                "children"
            )


def _random_state() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    drawn = () if numpy is None else numpy.random.get_state(legacy=True)
    parts = (part.tobytes() if hasattr(part, "tobytes") else part for part in drawn)
    return (random.getstate(), torch.get_rng_state().numpy().tobytes(), *parts)


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _joined(prefix: str, name: object) -> str:
    path = str(name).removeprefix("module").removeprefix(".")
    return ".".join(part for part in (prefix, path) if part)
