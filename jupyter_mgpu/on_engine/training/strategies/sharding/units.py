"""Which layers of a network are gathered at a time.

A rank holds its part of all parameters, and all parameters of the units that compute. Large units
cost memory, small ones a message each. So a unit is, from the whole network down:

- a module with at most an eighth of all parameters, such as a transformer's block,
- or a larger one that cannot be divided: it has no modules inside, or is torch's own and has
  parameters beside theirs (a MultiheadAttention uses its layers without calling them).

Modules with less than a thousandth stay with what is around them, as do lists of modules, which
nobody calls, and modules that share a parameter with others outside: it must be in one place.
What is left belongs to the network itself.
"""

from collections.abc import Iterator
from typing import Any

LARGEST = 1 / 8
SMALLEST = 1 / 1000


def units_of(net: Any) -> list[Any]:
    """Return the units below a network, which is the last one itself."""
    import torch

    total = _count(net)
    lists = torch.nn.ModuleList | torch.nn.ModuleDict
    owners = _owners(net)

    def divided(module: Any) -> Iterator[Any]:
        for child in module.children():
            size = _count(child)
            is_large = size > LARGEST * total and not _is_indivisible(child)
            if isinstance(child, lists) or is_large or not _is_closed(child, owners):
                yield from divided(child)
            elif size >= SMALLEST * total and size:
                yield child

    if _is_indivisible(net):
        return []
    return list(dict.fromkeys(divided(net)))  # one module may be in several places


def _count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _is_indivisible(module: Any) -> bool:
    if not any(True for _ in module.children()):
        return True
    has_own = any(True for _ in module.parameters(recurse=False))
    return has_own and type(module).__module__.startswith("torch.nn.")


def _owners(net: Any) -> dict[int, set[int]]:
    """Return which modules have each parameter, by identities."""
    found: dict[int, set[int]] = {}
    for module in net.modules():
        for parameter in module.parameters(recurse=False):
            found.setdefault(id(parameter), set()).add(id(module))
    return found


def _is_closed(module: Any, owners: dict[int, set[int]]) -> bool:
    """Tell whether all owners of a module's parameters are inside it."""
    inside = {id(child) for child in module.modules()}
    return all(owners[id(parameter)] <= inside for parameter in module.parameters())
