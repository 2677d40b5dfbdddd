"""Walks over code in the order in which it runs, and into the parts of which only some run."""

# ruff: noqa: D102 - the methods are named after the nodes that they visit

import ast
from abc import abstractmethod
from collections.abc import Iterable


class BranchWalk(ast.NodeVisitor):
    """A visitor that is told which parts of a statement or expression exclude each other."""

    def run(self, nodes: Iterable[ast.AST]) -> None:
        """Walk over nodes in turn."""
        for node in nodes:
            self.visit(node)

    @abstractmethod
    def _branches(self, *branches: Iterable[ast.AST]) -> None:
        """Visit branches of which one runs; an empty one stands for none of the others."""

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._branches(node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._branches([node.body], [node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._branches(node.values[1:], [])

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._branches(node.body, [])
        self._branches(node.orelse, [])

    @abstractmethod
    def visit_Try(self, node: ast.Try | ast.TryStar) -> None: ...

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self.visit_Try(node)
