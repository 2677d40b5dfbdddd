"""What no loop body may hold: statements that leave the loop, or hide names from the analysis."""

import ast
from collections.abc import Iterable
from typing import NoReturn

from jupyter_mgpu.loop_cell.records import Text
from jupyter_mgpu.loop_cell.scopes import Comprehension, Function, body_of, evaluated_now

_HIDING = {"exec": "exec", "eval": "eval", "locals": "locals()", "globals": "globals()"}
_HIDING_ALONE = ("vars", "dir")
_MAGICS = ("run_line_magic", "run_cell_magic")


def refuse_what_cannot_run(body: Iterable[ast.stmt], text: Text) -> None:
    """Refuse what cannot be a part of an independent iteration, whatever the names are.

    Raises:
        LoopBodyError: With the line of the first such statement.
    """
    visitor = _Refusals(text)
    for statement in body:
        visitor.visit(statement)


class _Refusals(ast.NodeVisitor):
    def __init__(self, text: Text) -> None:
        self._text = text
        self._depth = 0  # of loops inside the body
        self._in_function = False

    def _refuse(self, node: ast.AST, message: str) -> NoReturn:
        raise self._text.error(node, message)

    def visit_For(self, node: ast.For | ast.While) -> None:
        head = (node.target, node.iter) if isinstance(node, ast.For) else (node.test,)
        for part in head:
            self.visit(part)
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1
        for statement in node.orelse:  # a break there leaves the loop around
            self.visit(statement)

    visit_While = visit_For  # noqa: N815 - the visitor's name

    def visit_Break(self, node: ast.Break) -> None:
        if not self._depth:
            self._refuse(
                node,
                "break ends the loop, but iterations run at the same time and in any order. "
                "Use continue to end one iteration, or a plain loop.",
            )

    def visit_Return(self, node: ast.Return) -> None:
        if not self._in_function:
            self._refuse(
                node,
                "return is not possible in a loop body. Use continue to end the iteration, and "
                "results[i] = ... or results.append(...) for its result.",
            )
        self.generic_visit(node)

    def visit_Yield(self, node: ast.Yield | ast.YieldFrom) -> None:
        if not self._in_function:
            self._refuse(
                node,
                "yield is not possible in a loop body. "
                "Use results.append(...), where results is a list of the kernel.",
            )
        self.generic_visit(node)

    visit_YieldFrom = visit_Yield  # noqa: N815 - the visitor's name

    def visit_Await(self, node: ast.Await | ast.AsyncFor | ast.AsyncWith) -> None:
        self._refuse_await(node)
        self.generic_visit(node)

    def _refuse_await(self, node: ast.AST) -> None:
        if not self._in_function:
            self._refuse(
                node,
                "An iteration cannot await: it runs on an engine as a plain function. "
                "Put what awaits into an async function, and call asyncio.run(...) on it.",
            )

    visit_AsyncFor = visit_Await  # noqa: N815 - the visitor's name
    visit_AsyncWith = visit_Await  # noqa: N815 - the visitor's name

    def visit_Global(self, node: ast.Global) -> None:
        self._refuse(
            node,
            f"`global {', '.join(node.names)}` names variables of the kernel, which an engine "
            "cannot assign. Return the value, and assign it in the body.",
        )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.names[0].name == "*":
            self._refuse(
                node,
                f"`from {node.module} import *` binds names that cannot be known before it runs. "
                "Name them, or import them in a cell before the loop.",
            )

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        is_alone = not (node.args or node.keywords)
        if isinstance(function, ast.Name) and (
            function.id in _HIDING or (function.id in _HIDING_ALONE and is_alone)
        ):
            self._refuse(
                node,
                f"{function.id}() reaches names that cannot be known before it runs. "
                "Use the names themselves, or call it in a function that is defined before.",
            )
        if isinstance(function, ast.Attribute) and function.attr in _MAGICS:
            self._refuse(
                node,
                "A magic in a loop body runs in the engine's own namespace, where the names of "
                "the iteration are not. Write it as Python, or call it in a cell before.",
            )
        self.generic_visit(node)

    def _function(self, node: Function) -> None:
        for default in evaluated_now(node):
            self.visit(default)
        outside = self._in_function, self._depth
        self._in_function, self._depth = True, 0
        for part in body_of(node):
            self.visit(part)
        self._in_function, self._depth = outside

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node)

    def visit_ListComp(self, node: Comprehension) -> None:
        is_async = any(generator.is_async for generator in node.generators)
        if is_async and not isinstance(node, ast.GeneratorExp):
            self._refuse_await(node)
        self.generic_visit(node)

    visit_SetComp = visit_ListComp  # noqa: N815 - the visitor's name
    visit_DictComp = visit_ListComp  # noqa: N815 - the visitor's name
    visit_GeneratorExp = visit_ListComp  # noqa: N815 - the visitor's name
