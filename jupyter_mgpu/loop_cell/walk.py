"""Walks over a loop body in the order in which it runs, and notes what happens to which name."""

# ruff: noqa: D102, N802 - the methods are named after the nodes that they visit

import ast
from collections.abc import Iterable

from jupyter_mgpu.loop_cell.change_walk import ChangeWalk
from jupyter_mgpu.loop_cell.findings import Read
from jupyter_mgpu.loop_cell.name_walk import ClassNames
from jupyter_mgpu.loop_cell.scopes import (
    Comprehension,
    Function,
    bindings,
    class_arguments,
    evaluated_now,
    taken_from_outside,
    targets_of,
)

_LEAVING = (ast.Raise, ast.Continue, ast.Break)


class Walk(ChangeWalk):
    """The walk: into branches, and into functions, classes and comprehensions."""

    # Statements of which parts may not run

    def _branches(self, *branches: Iterable[ast.AST]) -> None:
        """Visit branches of which one runs; names count as assigned when all assign them."""
        before, aliases = self._assigned, dict(self._aliases)
        results, after = [], dict(aliases)
        for branch in branches:
            self._assigned, self._aliases = set(before), dict(aliases)
            nodes = list(branch)
            self.run(nodes)
            after |= self._aliases
            if not (nodes and isinstance(nodes[-1], _LEAVING)):
                results.append(self._assigned)
        self._assigned = set.intersection(*results) if results else before
        self._aliases = after

    def _may_repeat(self, *nodes: ast.AST) -> None:
        """Expect what a loop assigns at its start: the round before may have assigned it."""
        self._maybe |= frozenset(bindings(nodes)) & (self.temporaries | self.loop)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._may_repeat(node)
        before = set(self._assigned)
        self._assign(node.target, self._alias_of(node.iter), can_record=False)
        self._branches(node.body, [])
        self._assigned = before
        self._branches(node.orelse, [])

    def visit_While(self, node: ast.While) -> None:
        self._may_repeat(node)
        super().visit_While(node)

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        before = set(self._assigned)
        self._num_tries += bool(node.handlers)
        self.run(node.body)
        self._num_tries -= bool(node.handlers)
        whole, self._assigned = self._assigned, before
        results = []
        for handler in node.handlers:
            self._branches([handler])
            if not isinstance(handler.body[-1], _LEAVING):
                results.append(self._assigned)
            self._assigned = before
        self._assigned = whole
        self.run(node.orelse)
        self._assigned = set.intersection(self._assigned, *results)
        self.run(node.finalbody)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.visit(node.type)
        if node.name:
            self._bind(node.name, node)
        self.run(node.body)
        if node.name and not self._inner:
            self._assigned.discard(node.name)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, None, can_record=False)
        self.run(node.body)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        cases = (
            [case.pattern, *([case.guard] if case.guard else []), *case.body] for case in node.cases
        )
        last = node.cases[-1]
        is_complete = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        others: list[list[ast.AST]] = [] if is_complete and last.guard is None else [[]]
        self._branches(*cases, *others)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.generic_visit(node)
        if node.name:
            self._bind(node.name, node)

    visit_MatchStar = visit_MatchAs  # noqa: N815 - the visitor's name

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest:
            self._bind(node.rest, node)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name.partition(".")[0], node)

    visit_ImportFrom = visit_Import  # noqa: N815 - the visitor's name

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        inner, self._inner = self._inner, []  # binds around comprehensions, not in them
        was_assigned = node.target.id in self._assigned
        self._bind(node.target.id, node, self._alias_of(node.value))
        if inner and not was_assigned:
            self._assigned.discard(node.target.id)
        self._inner = inner

    # Scopes of their own

    def _comprehension(self, node: Comprehension, *results: ast.expr) -> None:
        self.visit(node.generators[0].iter)
        self._maybe |= frozenset(bindings([node])) & (self.temporaries | self.loop)
        self._inner.append(set(targets_of(node)))
        for number, generator in enumerate(node.generators):
            if number:
                self.visit(generator.iter)
            self.run(generator.ifs)
        self.run(results)
        self._inner.pop()

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self._comprehension(node, node.elt)

    visit_SetComp = visit_ListComp  # noqa: N815 - the visitor's name
    visit_GeneratorExp = visit_ListComp  # noqa: N815 - the visitor's name

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node, node.key, node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._function(node)
        self._bind(node.name, node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the visitor's name

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node)

    def _function(self, node: Function) -> None:
        self.run(evaluated_now(node))
        # A function does not see the names of the class around it.
        around = [names for names in self._inner if not isinstance(names, ClassNames)]
        inner, self._inner = self._inner, around
        for part in taken_from_outside(node):
            if not isinstance(part, ast.Name):
                self._change(part, "changed by a function of the body")
            elif not self._is_inner(part.id):
                self.findings.saw(part.id, part)
                if self._is_outer(part.id):
                    self._read(Read(part.id, part))
        self._check_methods(node)
        self._inner = inner

    def _check_methods(self, node: Function) -> None:
        """Refuse `results.append(e)` in a function of the body: the engine's copy would grow."""
        own = {part.id for part in taken_from_outside(node) if isinstance(part, ast.Name)}
        for part in ast.walk(node):
            match part:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
                    is_outer = name in own and self._is_outer(name)
                    if is_outer and self._kernel.is_changed_by(name, method):
                        self._refuse_method(part, name, method)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.run(class_arguments(node))
        self._inner.append(ClassNames(bindings(node.body)))
        self.run(node.body)
        self._inner.pop()
        self._bind(node.name, node)
