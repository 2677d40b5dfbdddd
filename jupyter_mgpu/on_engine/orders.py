"""The environment of an engine on another host, which travels in one variable.

A launcher may start one process (SSH) or many that are alike (Slurm, MPI): each finds its own
part by the number that its launcher gave it. Standard library only: it runs first.
"""

import json
import os
from collections.abc import Mapping, Sequence

VARIABLE = "MGPU_ORDERS"


def fold(
    orders: Sequence[Mapping[str, str]],
    place_variable: str = "",
    taken: Mapping[str, str] | None = None,
    first_place: int = 0,
) -> dict[str, str]:
    """Put the environments of engines that are launched together into one variable.

    Args:
        orders: Each engine's own, in the order of the launcher's numbers.
        place_variable: The variable in which the launcher tells a process its number, from 0 on;
            none where it starts a single one. `A|B` stands for the one that is set.
        taken: Variables of ours, and those of the launcher from which a process takes them, such
            as MGPU_LOCAL_RANK from SLURM_LOCALID.
        first_place: The number of the first engine; processes with lower ones end at once.
    """
    same = {
        name: value
        for name, value in orders[0].items()
        if all(order.get(name) == value for order in orders)
    }
    each = [{n: v for n, v in order.items() if n not in same} for order in orders]
    folded = {
        "place": place_variable,
        "first": first_place,
        "taken": dict(taken or {}),
        "all": same,
        "each": each,
    }
    # Open MPI sends other hosts no variable whose value has a "=".
    return {VARIABLE: json.dumps(folded).replace("=", "\\u003d")}


def unfold() -> None:
    """Take this engine's part over into its environment; without orders, do nothing."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return
    orders = json.loads(text)
    place = (int(_first_of(orders["place"])) if orders["place"] else 0) - orders["first"]
    if place < 0:
        raise SystemExit  # it stood for an engine that runs already, so that others are beside it
    taken = {ours: _first_of(theirs) for ours, theirs in orders["taken"].items()}
    os.environ.update({**orders["all"], **orders["each"][place], **taken})


def _first_of(names: str) -> str:
    return next(os.environ[name] for name in names.split("|") if name in os.environ)
