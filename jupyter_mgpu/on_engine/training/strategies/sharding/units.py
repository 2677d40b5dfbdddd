"""Which layers of a network are gathered at a time.

A rank holds its part of all parameters, and all parameters of the units that compute. Large units
cost memory, small ones a message each. So a unit is, from the whole network down:

- a module with at most an eighth of all parameters, such as a transformer's block,
- or a larger one that cannot be divided: it has no modules inside, or is torch's own and has
  parameters beside theirs (a MultiheadAttention uses its layers without calling them).

What stays with the modules around it: lists of modules or parameters, which nobody calls, modules
with less than a thousandth, and modules that share a parameter with others outside. What is left
belongs to the network itself.
"""

from collections.abc import Iterator
from typing import Any

LARGEST = 1 / 8
SMALLEST = 1 / 1000


def units_of(net: Any) -> list[Any]:
    """Return the units of a network, but for the network itself."""
    total, names = count(net), _names(net)

    def divided(module: Any, prefix: str) -> Iterator[Any]:
        for name, child in module.named_children():
            path = f"{prefix}{name}."
            size = count(child)
            is_large = size > LARGEST * total and not _is_indivisible(child)
            if is_large or not _is_called(child) or not _is_closed(child, path, names):
                yield from divided(child, path)
            elif size and size >= SMALLEST * total:
                yield child

    return [] if _is_indivisible(net) else list(divided(net, ""))


def count(module: Any) -> int:
    """Return how many numbers a module's parameters have."""
    return sum(parameter.numel() for parameter in module.parameters())


def _is_indivisible(module: Any) -> bool:
    if not any(True for _ in module.children()):
        return True
    has_own = any(True for _ in module.parameters(recurse=False))
    return has_own and type(module).__module__.startswith("torch.nn.")


def _is_called(module: Any) -> bool:
    import torch

    return type(module).forward is not torch.nn.Module.forward


def _names(net: Any) -> dict[int, list[str]]:
    """Return all names of each parameter, by its identity; it has several where it is shared."""
    found: dict[int, list[str]] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


def _is_closed(module: Any, path: str, names: dict[int, list[str]]) -> bool:
    """Tell whether a module's parameters are in no other module."""
    return all(
        name.startswith(path) for parameter in module.parameters() for name in names[id(parameter)]
    )
