"""What one rank has of a network and its optimizer; the rest has no numbers here ("meta")."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from jupyter_mgpu.on_engine.training.strategies.pipelining.links import Link
from jupyter_mgpu.on_engine.training.trees import map_leaves

State = dict[str, Any]


class Holding:
    """One stage's tensors.

    Args:
        net: The whole network; it is changed in place: other stages' tensors go away.
        stages: The links of each stage.
        stage: Which one this rank is.
        device: Where it computes.

    Attributes:
        shared: Parameters of several stages, in the same order on all ranks.
        counted: Parameters of this stage that no earlier one has.
    """

    def __init__(
        self, net: nn.Module, stages: Sequence[Sequence[Link]], stage: int, device: str
    ) -> None:
        users = _users(net, stages)
        found = [(name, users[id(one)]) for name, one in net.named_parameters()]
        _move(net, {key for key, stages in users.items() if stage in stages}, device)
        parameters = dict(net.named_parameters())
        self.shared = [parameters[name] for name, stages in found if len(stages) > 1]
        self.counted = [parameters[name] for name, (first, *_) in found if first == stage]


def _users(net: nn.Module, stages: Sequence[Sequence[Link]]) -> dict[int, list[int]]:
    """Return which stages use each parameter and buffer; what none uses belongs to the first."""
    found: dict[int, list[int]] = {id(one): [] for one in (*net.parameters(), *net.buffers())}
    for stage, links in enumerate(stages):
        for key in {id(one) for link in links for one in link.tensors(net)}:
            found[key].append(stage)
    return {key: users or [0] for key, users in found.items()}


def _move(net: nn.Module, own: set[int], device: str) -> None:
    """Bring a stage's tensors to its device, and let go of all others."""
    # With the old ones: they must live, as another tensor could get the id of one that does not.
    moved: dict[int, tuple[Any, Any]] = {}
    for module in net.modules():
        for name, one in (
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        ):
            if id(one) not in moved:
                moved[id(one)] = (one, _at(one, device if id(one) in own else "meta"))
            setattr(module, name, moved[id(one)][1])
    for module in net.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants them in one piece on a GPU


def _at(tensor: Any, device: str) -> Any:
    if not isinstance(tensor, nn.Parameter):
        return tensor.to(device)
    if device == "meta":
        there = nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad)
        there.__dict__.update(tensor.__dict__)  # by which an optimizer may form its groups
        return there
    tensor.data = tensor.data.to(device)
    return tensor


def is_here(tensor: Any) -> bool:
    """Tell whether a tensor of a network has numbers on this rank."""
    return not getattr(tensor, "is_meta", False)


def here(state: State) -> State:
    """Return what this rank has of a network's state, on the CPU."""
    return {name: _on_cpu(one) for name, one in state.items() if is_here(one)}


def own_of(state: State, net: nn.Module) -> State:
    """Return a whole state of a network as this rank's network takes it."""
    return {
        name: _like(state[name], one) if is_here(one) else one
        for name, one in net.state_dict().items()
    }


class OwnUpdates:
    """An optimizer of the whole network that updates what is here.

    Its groups stay, empty ones as well: a scheduler counts on them.

    Args:
        optimizer: Of all parameters.
    """

    def __init__(self, optimizer: Any) -> None:
        self._bounds = [0]
        self._numbers: list[int] = []  # of what stays, among all
        for group in optimizer.param_groups:
            whole, begin = group["params"], self._bounds[-1]
            self._bounds.append(begin + len(whole))
            self._numbers += [place for place, one in enumerate(whole, begin) if is_here(one)]
            for one in whole:
                if not is_here(one):
                    optimizer.state.pop(one, None)
            group["params"] = [one for one in whole if is_here(one)]

    def here(self, state: State) -> State:
        """Number the parameters of `optimizer.state_dict()` as in the whole network."""
        places = zip(state["param_groups"], pairwise(self._bounds), strict=True)
        return {
            "state": {
                self._numbers[place]: map_leaves(_on_cpu, found)
                for place, found in state["state"].items()
            },
            "param_groups": [group | {"params": [*range(*bounds)]} for group, bounds in places],
        }

    def own_of(self, state: State) -> State:
        """Return the whole state of an optimizer as this rank's optimizer takes it."""
        places = {number: place for place, number in enumerate(self._numbers)}
        return {
            "state": {
                places[number]: found
                for number, found in state["state"].items()
                if number in places
            },
            "param_groups": [
                group
                | {"params": [places[number] for number in group["params"] if number in places]}
                for group in state["param_groups"]
            ],
        }


def joined(parts: Sequence[State]) -> State:
    """Put the ranks' states of an optimizer together."""
    whole = {number: found for part in parts for number, found in part["state"].items()}
    return {"state": dict(sorted(whole.items())), "param_groups": parts[0]["param_groups"]}


def _like(value: Any, other: Any) -> Any:
    return value.to(other.device) if isinstance(value, torch.Tensor) else value


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value
