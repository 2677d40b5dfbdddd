"""Takes a network's forward apart into links: pieces that follow each other, one value between.

A link calls the network's own children by name, and does between them what the forward does. A
child that can be taken apart itself is.
"""

import copy
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from jupyter_mgpu.on_engine.training.strategies.pipelining.tracing import (
    UncuttableError,
    name_in,
    traced,
)


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
        return operator.attrgetter(name_in(node.target))(self._root)


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
    nodes = traced(module)
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
    if next(child.children(), None) is None:
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


def _joined(prefix: str, target: object) -> str:
    return ".".join(part for part in (prefix, name_in(target)) if part)
