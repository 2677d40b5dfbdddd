"""Which names a cell reads, binds and deletes, found without running it."""

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from jupyter_mgpu.on_engine.namespace.scan import Scan
from jupyter_mgpu.packing.functions import ENGINE_NAMES

RESERVED = ENGINE_NAMES
_SHELL = frozenset({"In", "Out", "get_ipython", "exit", "quit"})
_HISTORY = re.compile(r"_+|_i+|_ih|_oh|_dh|_i?\d+|_exit_code|__\w+__")


def is_user_name(name: str) -> bool:
    """Tell whether a name is the user's, not the shell's (history, get_ipython, ...)."""
    return name not in _SHELL and not _HISTORY.fullmatch(name)


@dataclass(frozen=True, slots=True)
class CellNames:
    """The names of one cell.

    Attributes:
        read: Read before the cell itself certainly binds them, functions' globals included.
        bound: Certainly bound when the cell ends well.
        maybe_bound: Bound on some paths only.
        deleted: Deleted by `del`.
        read_by: By name of a function or class that the cell defines, the globals it reads.
    """

    read: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()
    maybe_bound: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    read_by: dict[str, frozenset[str]] = field(default_factory=dict)


def analyse(source: str, transform: Callable[[str], str] | None = None) -> CellNames:
    """Find the names of a cell.

    Args:
        source: The cell as it was typed.
        transform: Turns magics and shell lines into Python, as IPython's `transform_cell`.

    Returns:
        No names where the cell cannot be parsed: running it will say why.
    """
    if not source.strip():
        return CellNames()
    return _analyse(source, transform)


@functools.lru_cache(maxsize=256)
def _analyse(source: str, transform: Callable[[str], str] | None) -> CellNames:
    try:
        tree = ast.parse(transform(source) if transform else _without_magics(source))
    except (SyntaxError, ValueError):
        return CellNames()
    scan = Scan(transform)
    scan.run(tree.body)
    return CellNames(
        read=frozenset(scan.all_read()),
        bound=frozenset(scan.assigned),
        maybe_bound=frozenset(scan.stored - scan.assigned),
        deleted=frozenset(scan.deleted - scan.assigned),
        read_by=scan.read_by,
    )


def _without_magics(source: str) -> str:
    return "\n".join(re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in source.splitlines())
