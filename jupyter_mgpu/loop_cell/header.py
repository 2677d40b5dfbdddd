"""Reads the header of a `%%parfor` cell: `i in range(100)`, `i, x in enumerate(xs)`."""

import ast
from collections.abc import Iterator

from jupyter_mgpu.loop_cell.records import Header, Text

_EXAMPLE = "Write it as in %%parfor i in range(100)."
_SIZED_ALIKE = ("enumerate", "zip")


def parse_header(text: str, filename: str = "<parfor>") -> Header:
    """Read a loop header.

    Args:
        text: What stands behind `%%parfor`, without options. A leading `for` and a trailing
            colon may stand there, as in a loop.
        filename: What errors call the cell.

    Raises:
        LoopBodyError: If it is no loop header.
    """
    shown = Text([f"%%parfor {text}"], filename)
    loop = text.strip().removeprefix("for ").removesuffix(":").strip()
    if not loop:
        raise shown.error(1, f"%%parfor was given no loop. {_EXAMPLE}")
    statement = _parse(loop)
    if statement is None:
        raise shown.error(1, f"%%parfor was given {loop!r}, which is no loop header. {_EXAMPLE}")
    problem = _problem(statement)
    if problem is not None:
        raise shown.error(1, f"%%parfor was given {loop!r}, {problem}")
    names = tuple(dict.fromkeys(stored_names(statement.target)))
    return Header(loop, statement.target, statement.iter, names)


def _parse(loop: str) -> ast.For | None:
    try:
        tree = ast.parse(f"for {loop}:\n pass")
    except (SyntaxError, ValueError):
        return None
    match tree.body:
        case [ast.For(body=[ast.Pass()], orelse=[]) as statement]:
            return statement
    return None


def _problem(statement: ast.For) -> str | None:
    for node in ast.walk(statement.target):
        if isinstance(node, ast.Attribute | ast.Subscript):
            return f"but a loop over engines can assign to names only. {_EXAMPLE}"
    for node in ast.walk(statement.iter):
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return "which does more than to name what is looped over. Do the rest in a cell before."
    return None


def stored_names(target: ast.expr) -> Iterator[str]:
    """List the names that a target binds."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def slice_variables(header: Header) -> dict[str, int | None]:
    """Return the loop variables by which names can be sliced, and where an item holds them.

    Only of items that are tuples for certain: taking others apart might use them up.
    """
    if isinstance(header.target, ast.Name):
        return {header.target.id: None}
    function = header.iterable.func if isinstance(header.iterable, ast.Call) else None
    is_pairs = isinstance(function, ast.Attribute) and function.attr == "items"
    if not is_pairs and not (isinstance(function, ast.Name) and function.id in _SIZED_ALIKE):
        return {}
    elements = header.target.elts if isinstance(header.target, ast.Tuple | ast.List) else []
    if any(isinstance(element, ast.Starred) for element in elements):
        return {}
    return {
        element.id: position
        for position, element in enumerate(elements)
        if isinstance(element, ast.Name) and header.names.count(element.id) == 1
    }


def distinct_variable(header: Header) -> str | None:
    """Return the loop variable that is an integer and never has the same value twice."""
    if is_call(header.iterable, "range") and isinstance(header.target, ast.Name):
        return header.target.id
    if _counts_from_0(header.iterable) and isinstance(header.target, ast.Tuple):
        first = header.target.elts[0]
        return first.id if isinstance(first, ast.Name) else None
    return None


def _counts_from_0(iterable: ast.expr) -> bool:
    return (
        isinstance(iterable, ast.Call)
        and is_call(iterable, "enumerate")
        and len(iterable.args) == 1
        and not iterable.keywords
    )


def iterated_names(header: Header) -> frozenset[str]:
    """Return the names that the loop reads while it runs: those in `range(len(a))` it does not."""
    if is_call(header.iterable, "range"):
        return frozenset()
    return read_names(header.iterable)


def read_names(node: ast.AST) -> frozenset[str]:
    """Return the names in an expression."""
    return frozenset(child.id for child in ast.walk(node) if isinstance(child, ast.Name))


def enumerated_name(header: Header) -> str | None:
    """Return `xs` of `i, x in enumerate(xs)`."""
    match header.iterable:
        case ast.Call(func=ast.Name("enumerate"), args=[ast.Name(name)], keywords=[]):
            return name
    return None


def is_call(node: ast.expr, function: str) -> bool:
    """Tell whether an expression calls a function by this name."""
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    )
