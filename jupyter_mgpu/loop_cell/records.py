"""What the analysis of a `%%parfor` cell finds."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from jupyter_mgpu.errors import LoopBodyError

FIRST_BODY_LINE = 2
"""The magic's own line is line 1 of the cell."""


class NameClass(StrEnum):
    """What a name is to the loop, in MATLAB's words."""

    LOOP = "loop"
    SLICED_INPUT = "sliced input"
    SLICED_OUTPUT = "sliced output"
    SLICED = "sliced input and output"
    REDUCTION = "reduction"
    BROADCAST = "broadcast"
    TEMPORARY = "temporary"


class SiteForm(StrEnum):
    """How a statement changes a name that lives in the kernel."""

    STORE = "a[i] = e"
    ITEM = "a[k] += e"
    METHOD = "a.append(e)"
    AUGMENTED = "a += e"
    REBINDING = "a = a + e"


class Key(NamedTuple):
    """Where a node stands, which tells it from all others of its kind."""

    kind: str
    line: int
    column: int
    end_line: int | None
    end_column: int | None


def key_of(node: ast.stmt | ast.expr) -> Key:
    """Return where a node stands."""
    place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
    return Key(type(node).__name__, *place)


@dataclass(frozen=True, slots=True)
class Site:
    """A statement that changes a kernel's name: recorded on the engine, replayed in the kernel.

    Attributes:
        name: The name.
        form: How it is changed.
        key: Where the statement (of a store: its target) stands in the body.
        statement: What the kernel runs: the statement with names in place of its operands.
        operands: What the engine evaluates, in that order. Of a store, the value comes last and
            is not among them.
        operation: The operator, method or function, for people.
    """

    name: str
    form: SiteForm
    key: Key
    statement: ast.stmt
    operands: tuple[ast.expr, ...]
    operation: str

    @property
    def line(self) -> int:
        """The line of the cell."""
        return self.key.line


@dataclass(frozen=True, slots=True)
class Slot:
    """An element that travels with each item, such as `a[i + 1]`.

    Attributes:
        name: The name that is sliced.
        index: The index.
        variable: The loop variable in the index.
        position: Where it stands in an item that is a tuple; None: it is the item.
        reads: Where the body reads the element.
        is_written: Whether the body also writes it.
    """

    name: str
    index: ast.expr
    variable: str
    position: int | None
    reads: frozenset[Key]
    is_written: bool


@dataclass(frozen=True, slots=True)
class Variable:
    """One name of the cell.

    Attributes:
        name: The name.
        kind: What it is to the loop.
        lines: The lines of the cell that use it; the magic's is line 1.
        note: Why it is that, and what is to be known about it.
    """

    name: str
    kind: NameClass
    lines: tuple[int, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Header:
    """What stands behind `%%parfor`.

    Attributes:
        text: The loop's header as it was typed.
        target: What is assigned in each iteration.
        iterable: What is looped over.
        names: The names that the target binds.
    """

    text: str
    target: ast.expr
    iterable: ast.expr
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Classification:
    """A cell that can run as independent iterations.

    Attributes:
        header: The loop's header.
        body: The statements of the body, with the cell's line numbers.
        variables: All names but builtins, in the order of their classes.
        sites: The statements that change names of the kernel.
        slots: The elements that travel with each item.
        identifiers: Every word of the cell, so that generated names can be others.
        filename: What tracebacks call the cell.
    """

    header: Header
    body: tuple[ast.stmt, ...]
    variables: tuple[Variable, ...]
    sites: tuple[Site, ...]
    slots: tuple[Slot, ...]
    identifiers: frozenset[str]
    filename: str

    def names(self, *kinds: NameClass) -> tuple[str, ...]:
        """List the names of some classes."""
        return tuple(variable.name for variable in self.variables if variable.kind in kinds)

    def fresh(self, name: str) -> str:
        """Return a name like this one with which no word of the cell begins."""
        return fresh(name, self.identifiers)


def fresh(name: str, identifiers: frozenset[str]) -> str:
    """Return a name like this one with which no identifier begins."""
    while any(word.startswith(name) for word in identifiers):
        name = f"_{name}"
    return name


class Text:
    """The cell as the user sees it, for errors that show the line.

    Args:
        lines: Its lines, the magic's first.
        filename: What tracebacks call it.
    """

    def __init__(self, lines: Sequence[str], filename: str) -> None:
        self.lines = tuple(lines)
        self.filename = filename

    def error(self, node: ast.AST | int, message: str) -> LoopBodyError:
        """Make the error for a node or a line of the cell."""
        if isinstance(node, int):
            return LoopBodyError(message, (self.filename, node, None, self._line(node)))
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None) or column
        place = (line, self._offset(line, column), self._line(line))
        end = (end_line, self._offset(end_line, end_column))
        return LoopBodyError(message, (self.filename, *place, *end))

    def _line(self, line: int) -> str:
        return self.lines[line - 1] if line <= len(self.lines) else ""

    def _offset(self, line: int, column: int) -> int:
        # Nodes count bytes from 0, errors characters from 1.
        return len(self._line(line).encode()[:column].decode(errors="ignore")) + 1
