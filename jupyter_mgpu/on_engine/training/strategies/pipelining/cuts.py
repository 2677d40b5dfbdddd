"""Which links make a stage: as named, or so that the largest stage is as small as possible."""

import itertools
from collections.abc import Sequence

from jupyter_mgpu.on_engine.training.strategies.pipelining.links import Link
from jupyter_mgpu.on_engine.training.strategies.pipelining.sizes import Size

SHOWN = 12


def named_cuts(links: Sequence[Link], names: Sequence[str], num_stages: int) -> list[int]:
    """Return where each stage but the first begins, as it was asked for.

    Args:
        links: All of them.
        names: The children with which these stages begin.
        num_stages: How many there must be.

    Raises:
        ValueError: If the network cannot be cut there, or the number does not fit.
    """
    if len(names) != num_stages - 1:
        raise ValueError(
            f"pipeline_splits names {len(names)} children, but {num_stages} ranks train: name the "
            f"{num_stages - 1} with which the stages after the first begin."
        )
    cuts = [_place(links, name) for name in names]
    if any(one >= other for one, other in itertools.pairwise(cuts)):
        raise ValueError(
            f"pipeline_splits is {list(names)}, but these children are not in the order in which "
            "the network calls them, each once."
        )
    return cuts


def _place(links: Sequence[Link], name: str) -> int:
    for place, link in enumerate(links):
        if place and (link.name == name or link.name.startswith(f"{name}.")):
            return place
    known = [link.name for link in links[1:]]
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    raise ValueError(
        f"pipeline_splits has {name!r}, but the network can only be cut before: "
        f"{', '.join(known[:SHOWN])}{more}."
    )


def cuts_by_size(sizes: Sequence[Size], num_stages: int) -> list[int]:
    """Return where each stage but the first begins.

    Raises:
        ValueError: If there are too few places where one tensor goes on.
    """
    places = [place for place in range(1, len(sizes)) if sizes[place - 1].ends_in_tensor]
    if len(places) < num_stages - 1:
        raise ValueError(too_few(len(places) + 1, num_stages))
    upto = [0, *itertools.accumulate(size.num_bytes for size in sizes)]
    # By where the newest stage ends: the size of the largest so far, and where they begin.
    ends = [*places, len(sizes)]
    best: dict[int, tuple[int, list[int]]] = {end: (upto[end], []) for end in ends}
    for _ in range(num_stages - 1):
        best = {
            end: min(
                (max(largest, upto[end] - upto[begin]), [*cuts, begin])
                for begin, (largest, cuts) in best.items()
                if begin < end
            )
            for end in ends
            if any(begin < end for begin in best)
        }
    return best[len(sizes)][1]


def too_few(num_pieces: int, num_stages: int) -> str:
    """Say that a network has fewer pieces than there are ranks."""
    pieces = "one piece" if num_pieces == 1 else f"{num_pieces} pieces that follow each other"
    return (
        f"strategy is 'pipeline' on {num_stages} ranks, but the network has {pieces}, one for each "
        f"rank at most. Train on fewer ranks (worker_load={max(1, num_pieces)}), or choose 'ddp'."
    )
