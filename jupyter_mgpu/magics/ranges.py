"""Reads what people type for sizes and ranks: `4`, `2:4`, `0,2-3`; and numbers their cells."""

import re
from collections.abc import Callable
from typing import Any

from jupyter_mgpu.errors import SelectionError


def parse_size(text: str) -> int | tuple[int, int]:
    """Read `4` as 4 and `2:4` as (2, 4).

    Raises:
        SelectionError: If it is neither.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if found is None:
        raise SelectionError(
            f"{text!r} was given, but %parpool takes a number of engines (4), a range (2:4), "
            "or status, restart, stop."
        )
    low, high = found.groups()
    return int(low) if high is None else (int(low), int(high))


def parse_ranks(text: str) -> tuple[int, ...]:
    """Read `0,2-3` as (0, 2, 3).

    Raises:
        SelectionError: If it is no list of ranks, or names one twice.
    """
    ranks: list[int] = []
    for part in re.split(r"[,\s]+", text.strip()):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None:
            raise SelectionError(f"{text!r} was given; ranks are written like 0,2-3.")
        low, high = int(found[1]), int(found[2] or found[1])
        ranks.extend(range(low, high + 1))
    if len(set(ranks)) != len(ranks) or not ranks:
        raise SelectionError(f"{text!r} must name at least one rank, and each rank once.")
    return tuple(ranks)


def transform_of(shell: Any) -> Callable[[str], str]:
    """Return what turns magics into Python in this shell."""
    return shell.transform_cell  # type: ignore[no-any-return]


def cell_number(shell: Any) -> int:
    """Return the number that the running cell shows as `In [n]`.

    IPython raises `execution_count` before or after a cell, depending on its version.
    """
    return len(shell.history_manager.input_hist_raw) - 1
