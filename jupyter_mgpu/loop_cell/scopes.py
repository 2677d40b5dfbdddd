"""Python's rules of scope: what statements bind, and what nested functions take from outside."""

import ast
from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def bindings(nodes: Iterable[ast.AST]) -> dict[str, list[ast.AST]]:
    """Find the names that statements bind in their own scope, and by which nodes.

    A name that is assigned alone, as in `x = 1` or `x += 1`, comes with that statement.
    """
    visitor = _Bindings()
    for node in nodes:
        visitor.visit(node)
    return visitor.found


class _Bindings(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: dict[str, list[ast.AST]] = {}

    def _bind(self, name: str | None, node: ast.AST) -> None:
        if name is not None:
            self.found.setdefault(name, []).append(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id, node)

    def visit_Assign(self, node: ast.Assign) -> None:
        match node.targets:
            case [ast.Name(name)]:
                self._bind(name, node)
                self.visit(node.value)
            case _:
                self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._bind(node.target.id, node)
            self.visit(node.value)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name.partition(".")[0], node)

    visit_ImportFrom = visit_Import  # noqa: N815 - the visitor's name

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._bind(node.name, node)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self._bind(node.name, node)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs  # noqa: N815 - the visitor's name

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._bind(node.rest, node)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._bind(node.name, node)
        for part in evaluated_now(node):
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the visitor's name

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in evaluated_now(node):
            self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name, node)
        for part in class_arguments(node):
            self.visit(part)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for part in (node.iter, *node.ifs):  # the target is the comprehension's own
            self.visit(part)


def evaluated_now(node: Function) -> Iterator[ast.expr]:
    """List what is evaluated where a function is defined: decorators, defaults, annotations."""
    yield from node.args.defaults
    yield from filter(None, node.args.kw_defaults)
    if isinstance(node, ast.Lambda):
        return
    yield from node.decorator_list
    yield from (argument.annotation for argument in _arguments(node) if argument.annotation)
    if node.returns is not None:
        yield node.returns


def class_arguments(node: ast.ClassDef) -> list[ast.expr]:
    """List what is evaluated around a class before its body."""
    return [*node.decorator_list, *node.bases, *(word.value for word in node.keywords)]


def _arguments(node: Function) -> list[ast.arg]:
    arguments = node.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return listed + [extra for extra in (arguments.vararg, arguments.kwarg) if extra]


def body_of(node: Function) -> list[ast.AST]:
    """Return what runs when a function is called."""
    return [node.body] if isinstance(node, ast.Lambda) else list(node.body)


def own_names(node: Function) -> frozenset[str]:
    """Return the names that are a function's own."""
    return frozenset(
        [argument.arg for argument in _arguments(node)]
        + [parameter.name for parameter in getattr(node, "type_params", [])]
        + list(bindings(body_of(node)))
    )


def targets_of(node: Comprehension) -> frozenset[str]:
    """Return the names that are a comprehension's own."""
    return frozenset(
        child.id
        for generator in node.generators
        for child in ast.walk(generator.target)
        if isinstance(child, ast.Name)
    )


def taken_from_outside(node: Function) -> Iterator[ast.Name | ast.Attribute | ast.Subscript]:
    """Find what a function reads or changes of the names around it, when it is called.

    Names are yielded as such, and changes such as `a[0] = 1` or `a.b = 1` as a whole before.
    """
    own = own_names(node)
    for part in body_of(node):
        yield from _taken(part, own)


def _taken(
    node: ast.AST, own: frozenset[str]
) -> Iterator[ast.Name | ast.Attribute | ast.Subscript]:
    if isinstance(node, ast.Name):
        if node.id not in own:
            yield node
        return
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        root = root_name(node)
        if root is not None and root.id not in own:
            yield node
    for part, names in _parts(node, own):
        yield from _taken(part, names)


def _parts(node: ast.AST, own: frozenset[str]) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """List the parts of a node, each with the names that do not come from outside there."""
    if isinstance(node, Function):
        yield from ((part, own) for part in evaluated_now(node))
        yield from ((part, own | own_names(node)) for part in body_of(node))
    elif isinstance(node, ast.ClassDef):
        yield from ((part, own) for part in class_arguments(node))
        inside = own | frozenset(bindings(node.body))
        # Methods do not see the names of their class.
        yield from ((part, own if isinstance(part, Function) else inside) for part in node.body)
    elif isinstance(node, Comprehension):
        yield from ((part, own | targets_of(node)) for part in ast.iter_child_nodes(node))
    else:
        yield from ((part, own) for part in ast.iter_child_nodes(node))


def root_name(node: ast.expr) -> ast.Name | None:
    """Return `a` of `a`, `a.b[0].c` and `a.setdefault(k, []).b`."""
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="setdefault")):
                node = inner
            case _:
                return None
    return node
