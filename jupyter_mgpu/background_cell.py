"""A notebook cell as a task: its names are packed at submission, its last expression returned."""

from collections.abc import Callable
from typing import Any

from jupyter_mgpu.cell_text import below_magic
from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.on_engine.cells import run_background_cell
from jupyter_mgpu.on_engine.namespace.names import analyse
from jupyter_mgpu.output import failures
from jupyter_mgpu.output.status_line import follow
from jupyter_mgpu.pool import Pool


def submit_cell(
    pool: Pool,
    source: str,
    namespace: dict[str, Any],
    *,
    name: str | None,
    transform: Callable[[str], str],
    count: int,
    priority: int = 0,
    timeout: float | None = None,
) -> TaskFuture:
    """Run a cell in the background on the next free engine.

    Args:
        pool: Where to run.
        source: The cell, without its magic line.
        namespace: The notebook's names; those that the cell reads are packed now.
        name: What the task is called.
        transform: Turns magics into Python, as the shell does.
        count: The kernel's execution count, for tracebacks.
        priority: Higher ones start first.
        timeout: Seconds from its start after which it is ended.

    Raises:
        PackingError: If a name that the cell reads cannot be pickled.
        SyntaxError: If the cell is no Python.
    """
    failures.check_syntax(below_magic(source, transform), "%%parfeval")
    names = {
        key: namespace[key] for key in sorted(analyse(source, transform).read) if key in namespace
    }
    future = pool.submit_task(
        run_background_cell,
        (source, names, count),
        name=name or f"cell-{count}",
        priority=priority,
        timeout=timeout,
    )
    follow(future)
    return future
