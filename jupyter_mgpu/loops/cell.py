"""`%%parfor`: a cell is the body of a loop on all engines."""

import contextlib
from functools import partial
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.cell_text import below_magic
from jupyter_mgpu.loop_cell import (
    Classification,
    Collector,
    NameClass,
    classify,
    iteration_function,
    loop_items,
)
from jupyter_mgpu.loops.options import LoopOptions
from jupyter_mgpu.loops.parfor import run_loop
from jupyter_mgpu.output import failures, notices, publisher
from jupyter_mgpu.output.table import format_bytes
from jupyter_mgpu.pool import Pool

TOLD_BYTES = 50 * 10**6
"""From so much broadcast data on, it is told what is sent."""
LISTED_BYTES = 10**6
"""Names with less are not listed then."""


def read_cell(header: str, body: str, shell: Any, count: int) -> Classification:
    """Classify the names of a cell; nothing runs.

    Args:
        header: What stands behind `%%parfor`, without options.
        body: The cell without that line.
        shell: The IPython shell, whose names and transformations count.
        count: The kernel's execution count, for tracebacks.

    Raises:
        LoopBodyError: If it is no loop of independent iterations.
        SyntaxError: If it is no Python.
    """
    text = below_magic(body, shell.transform_cell, f"# %%parfor {header}")
    # Named neither as the whole cell nor as one that is the body alone: these have other lines.
    filename = shell.compile.cache(text, count, raw_code=f"%%parfor\n{body}")
    try:
        return classify(
            header,
            body,
            namespace=shell.user_ns,
            transform=shell.transform_cell,
            filename=filename,
        )
    except SyntaxError as error:
        failures.draw_own_lines(error)
        raise


def run_cell(
    loop: Classification,
    namespace: dict[str, Any],
    options: LoopOptions,
    pool: Pool | None = None,
) -> None:
    """Run a cell's iterations, and then change the kernel's names as the plain loop would.

    After an error or a Stop no name has changed, and the exception has in `results` what was
    finished, by name: a number or array folded as far as it goes, for other names a list of the
    changes in loop order, such as (index, value) of `out[i] = value`.

    Args:
        loop: The cell.
        namespace: The kernel's names.
        options: How it is run.
        pool: Where; the current pool by default.

    Raises:
        LoopBodyError: If iterations may write an element that others read.
        BaseException: As `parfor`, and what a change in the kernel raises.
    """
    try:
        items = loop_items(loop, namespace)
        collector = Collector(loop, namespace)
        _run_iterations(loop, namespace, options, pool, items, collector)
        finished = collector.partial()
        try:
            collector.finish()
        except BaseException as error:
            error.__dict__["results"] = finished
            raise
    except BaseException as error:
        failures.draw_own_lines(error)
        raise


def _run_iterations(
    loop: Classification,
    namespace: dict[str, Any],
    options: LoopOptions,
    pool: Pool | None,
    items: Any,
    collector: Collector,
) -> None:
    try:
        run_loop(
            iteration_function(loop, namespace),
            [items],
            options,
            pool=pool,
            on_result=collector.apply,
            on_packed=partial(_tell_broadcasts, loop, namespace),
        )
    except BaseException as error:
        with contextlib.suppress(Exception):  # applying results may be what has failed
            for index, result in error.__dict__.get("results", {}).items():
                collector.apply(index, result)
        error.__dict__["results"] = collector.partial()
        raise


def _tell_broadcasts(loop: Classification, namespace: dict[str, Any], num_bytes: int) -> None:
    """Say which names make the loop's function large."""
    if num_bytes <= TOLD_BYTES:
        return
    names = [name for name in loop.names(NameClass.BROADCAST) if name in namespace]
    sizes = {name: packing.count_bytes(packing.pack(namespace[name])) for name in names}
    listed = ", ".join(
        f"{name} ({format_bytes(size)})" for name, size in sizes.items() if size >= LISTED_BYTES
    )
    line = f"sends {listed} to the engines, once per host: all iterations may read it"
    notices.show_dim(publisher.capture(), [line])
