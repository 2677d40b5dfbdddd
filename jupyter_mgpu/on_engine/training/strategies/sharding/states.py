"""Whole states of a divided network and its optimizer, and a rank's part of them."""

import math
from collections.abc import Mapping
from typing import Any

State = dict[str, Any]


def gathered(value: Any, *, is_kept: bool) -> Any:
    """Return the whole of a tensor on the CPU where it is kept; all ranks call it."""
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        value = value.full_tensor()
    if not is_kept:
        return None
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def gathered_state(state: State, aliases: Mapping[str, str], *, is_kept: bool) -> State:
    """Return a whole state of a network; its tied parameters are one tensor again.

    Args:
        state: This rank's part.
        aliases: The first name of each parameter that has several.
        is_kept: Whether this rank is the one that gets it.
    """
    found: State = {}
    for name, value in state.items():
        first = aliases.get(name, name)
        found[name] = found[first] if first in found else gathered(value, is_kept=is_kept)
    return found


def part_of(whole: Any, like: Any) -> Any:
    """Return this rank's part of a whole tensor.

    Args:
        whole: The tensor, the same on all ranks.
        like: A tensor that is divided as the part shall be; it may be one that is not.
    """
    import torch
    from torch.distributed.tensor import DTensor

    if not isinstance(whole, torch.Tensor) or not isinstance(like, torch.Tensor):
        return whole
    if not isinstance(like, DTensor):
        return whole.to(like.device, copy=True)
    own = like.to_local()
    begin = _begin(like)
    local = whole[begin : begin + len(own)].to(own.device, copy=True)
    return DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.contiguous().stride(),
    )


def _begin(like: Any) -> int:
    """Return the first row of this rank: torch cuts as `chunk` does, the last ones are short."""
    rows, mesh = len(like), like.device_mesh
    rows_per_rank = math.ceil(rows / mesh.size())
    return int(min(rows, rows_per_rank * mesh.get_local_rank()))


def part_of_optimizer(optimizer: Any, state: State) -> State:
    """Return this rank's part of the whole state of an optimizer.

    Args:
        optimizer: Of the divided parameters.
        state: With tensors that have their parameter's shape, or are the same on all ranks.
    """
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    by_number = dict(zip(numbers, parameters, strict=False))
    found = {
        number: {
            name: part_of(value, by_number[number])
            if getattr(value, "shape", None) == by_number[number].shape
            else value
            for name, value in values.items()
        }
        for number, values in state["state"].items()
    }
    return state | {"state": found}
