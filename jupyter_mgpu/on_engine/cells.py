"""Runs one `%%spmd` cell in the engine's namespace, as IPython would."""

import ast
import builtins
import inspect
import sys
from collections.abc import Coroutine
from typing import Any

from jupyter_mgpu.cell_text import below_magic
from jupyter_mgpu.on_engine import context


class Cell:
    """One cell: compiled, run, and its last expression shown.

    Args:
        shell: The IPython shell: its input transformations, compiler and namespace are used.
        source: The cell as the user wrote it, without the `%%spmd` line.
        count: The kernel's execution count, for tracebacks.
    """

    def __init__(self, shell: Any, source: str, count: int) -> None:
        self._shell = shell
        self._source = source
        self._count = count

    def run(self) -> Coroutine[Any, Any, Any] | None:
        """Run the cell; returns what must be awaited when it awaits at its top level.

        Raises:
            BaseException: Whatever the cell raises.
        """
        shell = self._shell
        transformed = below_magic(self._source, shell.transform_cell)
        name = shell.compile.cache(transformed, self._count, raw_code=self._source)
        tree = ast.parse(transformed, name)
        body, last = tree.body, None
        if body and isinstance(end := body[-1], ast.Expr) and not _is_quiet(transformed):
            body.pop()
            last = ast.Expression(end.value)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        module = compile(ast.Module(body, []), name, "exec", flags, dont_inherit=True)
        expression = last and compile(last, name, "eval", flags, dont_inherit=True)
        shell.events.trigger("pre_execute")
        codes = [code for code in (module, expression) if code]
        if any(code.co_flags & inspect.CO_COROUTINE for code in codes):
            return self._run_async(module, expression)
        exec(module, shell.user_ns)
        if expression:
            self._show(eval(expression, shell.user_ns))
        shell.events.trigger("post_execute")
        return None

    async def _run_async(self, module: Any, expression: Any) -> Any:
        value = None
        for code in (module, expression):
            if code is None:
                continue
            value = eval(code, self._shell.user_ns)
            if code.co_flags & inspect.CO_COROUTINE:
                value = await value
        return value if expression else None

    def finish(self, value: Any) -> None:
        """Show the last expression of a cell that awaited."""
        self._show(value)
        self._shell.events.trigger("post_execute")

    def _show(self, value: Any) -> None:
        if value is not None:
            sys.displayhook(value)


def _is_quiet(source: str) -> bool:
    """Tell whether the cell ends with a semicolon, which hides its last value."""
    lines = [line.split("#")[0].rstrip() for line in source.rstrip().splitlines()]
    return bool(lines) and lines[-1].endswith(";")


def run_background_cell(source: str, names: dict[str, Any], count: int) -> Any:
    """Run a `%%parfeval` cell in a namespace of its own; return its last expression.

    Args:
        source: The cell, without its magic line.
        names: The kernel's values of the names that it reads.
        count: The kernel's execution count, for tracebacks.
    """
    engine = context.require()
    shell = engine.shell
    transformed = below_magic(source, shell.transform_cell)
    filename = shell.compile.cache(transformed, count, raw_code=source)
    scope = {"__name__": "__main__", "__builtins__": builtins, "get_ipython": lambda: shell}
    scope |= {"rank": engine.rank, "world_size": engine.world_size, "device": engine.device}
    scope |= names
    tree = ast.parse(transformed, filename)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, filename, "exec", dont_inherit=True), scope)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), filename, "eval", dont_inherit=True), scope)
