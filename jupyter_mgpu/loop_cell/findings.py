"""What a walk over a loop body finds."""

import ast
from dataclasses import dataclass, field

from jupyter_mgpu.loop_cell.records import Key, Site


@dataclass(frozen=True, slots=True)
class Read:
    """One place where the body reads a name of the kernel.

    Attributes:
        node: The name, or the whole `a[i]` where it is sliced.
        index: The index, where it is of a form that slices.
        variable: The loop variable in that index.
    """

    name: str
    node: ast.expr
    index: ast.expr | None = None
    variable: str = ""


@dataclass(slots=True)
class Findings:
    """What a walk has found.

    Attributes:
        reads: By name, where the kernel's value is read.
        sites: The statements that change names of the kernel.
        store_indexes: By the site's key, the index of a store with one index.
        lines: By name, the lines that use it.
        notes: By name, what is to be known about it.
    """

    reads: dict[str, list[Read]] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    store_indexes: dict[Key, Read] = field(default_factory=dict)
    lines: dict[str, set[int]] = field(default_factory=dict)
    notes: dict[str, dict[str, None]] = field(default_factory=dict)

    def note(self, name: str, text: str) -> None:
        """Add a note, once."""
        self.notes.setdefault(name, {})[text] = None

    def saw(self, name: str, node: ast.AST) -> None:
        """Take note of a line that uses a name."""
        self.lines.setdefault(name, set()).add(getattr(node, "lineno", 1))
