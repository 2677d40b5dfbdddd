"""Walk over a cell in the order in which it runs, and note which names it reads and binds."""

# ruff: noqa: D102, N802 - the methods are named after the nodes that they visit

import ast
import dis
import types
from collections.abc import Callable, Iterable

from jupyter_mgpu.branch_walk import BranchWalk

_BODY_MAGICS = frozenset({"time", "capture", "prun"})


def globals_of(node: ast.stmt | ast.expr) -> frozenset[str]:
    """Find the global names that the functions inside a node read when they run."""
    try:
        if isinstance(node, ast.expr):
            code = compile(ast.Expression(node), "<cell>", "eval")
        else:
            code = compile(ast.Module([node], []), "<cell>", "exec")
    except SyntaxError:  # such as `nonlocal` out of its context: every name counts
        return frozenset(child.id for child in ast.walk(node) if isinstance(child, ast.Name))
    return frozenset(name for nested in _nested(code) for name in _code_globals(nested))


def _nested(code: types.CodeType) -> Iterable[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _code_globals(code: types.CodeType) -> set[str]:
    read, stored = set(), {"__class__"}
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            read.add(step.argval)
        elif step.opname == "STORE_NAME":  # a name of a class body
            stored.add(step.argval)
    return read - stored


class _ClassNames(set[str]):
    """The names that a class body has bound so far."""


class Scan(BranchWalk):
    """The names met so far.

    Args:
        transform: Turns magics into Python.

    Attributes:
        assigned: Certainly bound by now.
        stored: Bound on some path.
        deleted: Deleted by `del`.
        read_by: By name of a function or class, the globals it reads.
    """

    def __init__(self, transform: Callable[[str], str] | None) -> None:
        self.assigned: set[str] = set()
        self.stored: set[str] = set()
        self.deleted: set[str] = set()
        self.read_by: dict[str, frozenset[str]] = {}
        self._transform = transform
        self._read: set[str] = set()
        self._later: set[str] = set()  # read by functions of the cell, when they are called
        self._defined: set[str] = set()
        self._inner: list[set[str]] = []  # names of the comprehensions and class bodies around

    def all_read(self) -> set[str]:
        """Return the names that were read before they were certainly bound."""
        # A function may read one that the cell defines further down: it is called after that.
        return self._read | (self._later - (self._defined & self.assigned))

    def _load(self, name: str) -> None:
        if name not in self.assigned and not any(name in names for names in self._inner):
            self._read.add(name)

    def _store(self, name: str) -> None:
        if self._inner:
            self._inner[-1].add(name)
            return
        self.assigned.add(name)
        self.stored.add(name)

    def _branches(self, *branches: Iterable[ast.AST]) -> None:
        """Visit branches of which one runs; names count as bound when all bind them."""
        before, results = self.assigned, []
        for branch in branches:
            self.assigned = set(before)
            nodes = list(branch)
            self.run(nodes)
            if not (nodes and isinstance(nodes[-1], ast.Raise)):
                results.append(self.assigned)
        self.assigned = set.intersection(*results) if results else before

    def _defer(self, node: ast.stmt | ast.expr, own_name: str | None = None) -> frozenset[str]:
        names = globals_of(node)
        # Functions see the names of comprehensions around them, but not those of class bodies.
        outer = set(self.assigned).union(
            *(inner for inner in self._inner if not isinstance(inner, _ClassNames))
        )
        self._later |= names - outer - (set() if self._inner else {own_name})
        return names

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._load(node.id)
        elif isinstance(node.ctx, ast.Store):
            self._store(node.id)
        elif self._inner:
            self._inner[-1].discard(node.id)
        else:
            self.assigned.discard(node.id)
            self.deleted.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        self.run(node.targets)
        if isinstance(node.value, ast.Lambda) and isinstance(node.targets[0], ast.Name):
            self.read_by[node.targets[0].id] = globals_of(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._load(node.target.id)
        self.visit(node.value)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        inner, self._inner = self._inner, []  # binds around comprehensions, not in them
        self._store(node.target.id)
        if inner:
            self.assigned.discard(node.target.id)
        self._inner = inner

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._branches([node.target, *node.body], [])
        self._branches(node.orelse, [])

    visit_AsyncFor = visit_For  # noqa: N815 - the visitor's name

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        self._branches([*node.body, *node.orelse], *([handler] for handler in node.handlers))
        self.run(node.finalbody)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.visit(node.type)
        if node.name:
            self._store(node.name)
        self.run(node.body)
        if node.name:
            self.assigned.discard(node.name)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        cases = (
            [case.pattern, *([case.guard] if case.guard else []), *case.body] for case in node.cases
        )
        self._branches(*cases, [])

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self.generic_visit(node)
        if node.name:
            self._store(node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self._store(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest:
            self._store(node.rest)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name != "*":
                self._store(alias.asname or alias.name.partition(".")[0])

    visit_ImportFrom = visit_Import  # noqa: N815 - the visitor's name

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        annotated = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        annotated += [extra for extra in (arguments.vararg, arguments.kwarg) if extra]
        defaults = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
        annotations = [argument.annotation for argument in annotated if argument.annotation]
        self.run([*node.decorator_list, *defaults, *annotations])
        if node.returns:
            self.visit(node.returns)
        names = self._defer(node, node.name)
        self._define(node.name, names)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the visitor's name

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.run([*node.args.defaults, *filter(None, node.args.kw_defaults)])
        self._defer(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.run([*node.decorator_list, *node.bases, *(word.value for word in node.keywords)])
        self._inner.append(_ClassNames(("__module__", "__qualname__")))
        self.run(node.body)
        self._inner.pop()
        self._define(node.name, globals_of(node))

    def _define(self, name: str, names: frozenset[str]) -> None:
        if not self._inner:
            self.read_by[name] = names
            self._defined.add(name)
        self._store(name)

    def _comprehension(self, generators: list[ast.comprehension], *results: ast.expr) -> None:
        self.visit(generators[0].iter)
        self._inner.append(set())
        for index, generator in enumerate(generators):
            if index:
                self.visit(generator.iter)
            self.run([generator.target, *generator.ifs])
        self.run(results)
        self._inner.pop()

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self._comprehension(node.generators, node.elt)

    visit_SetComp = visit_ListComp  # noqa: N815 - the visitor's name
    visit_GeneratorExp = visit_ListComp  # noqa: N815 - the visitor's name

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node.generators, node.key, node.value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        words = [word.value for word in node.args if isinstance(word, ast.Constant)]
        texts = [word for word in words if isinstance(word, str)]
        if name == "run_line_magic" and len(texts) > 1 and texts[0] in _BODY_MAGICS:
            self._run_text(texts[1])
        elif name == "run_cell_magic" and len(texts) > 2 and texts[0] in _BODY_MAGICS:
            if texts[0] == "capture":
                for word in texts[1].split():
                    if word.isidentifier():
                        self._store(word)
            self._run_text(texts[2])

    def _run_text(self, text: str) -> None:
        try:
            tree = ast.parse(self._transform(text) if self._transform else text)
        except (SyntaxError, ValueError):  # the magic's options, or no Python
            return
        self.run(tree.body)
