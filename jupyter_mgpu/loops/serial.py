"""A loop in this process, one item after the other: for breakpoints, and within an engine."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jupyter_mgpu.loops.options import LoopOptions
from jupyter_mgpu.loops.results import OnResult, Results, keep_results
from jupyter_mgpu.on_engine import seeds
from jupyter_mgpu.on_engine.chunks import note_of
from jupyter_mgpu.output.progress_bar import ProgressBar


def run_serially(
    fn: Callable[..., Any],
    iterables: Sequence[Iterable[Any]],
    options: LoopOptions,
    total: int | None,
    bar: ProgressBar | None,
    on_result: OnResult | None = None,
) -> list[Any]:
    """Run a loop here. Results, errors and random numbers are as on the engines.

    Args:
        fn: What is called.
        iterables: What is looped over.
        options: As for a loop on engines.
        total: How many items there will be, if that is known.
        bar: Shows the progress.
        on_result: See `Results`.

    Raises:
        BaseException: What an item raised; `error.results` has what was finished.
    """
    results = Results(on_result)
    outcome = ""
    try:
        with contextlib.nullcontext() if options.seed is None else seeds.preserved():
            for index, arguments in enumerate(zip(*iterables, strict=False)):
                _run_item(fn, index, arguments, options, results)
                results.hand_over()
                if bar is not None:
                    bar.update(results.num_done, total, results.num_failed)
    except BaseException as error:
        outcome = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        keep_results(error, results)
        raise
    finally:
        if bar is not None:
            bar.finish(results.num_done, total, results.num_failed, outcome)
    return results.in_order()


def _run_item(
    fn: Callable[..., Any],
    index: int,
    arguments: tuple[Any, ...],
    options: LoopOptions,
    results: Results,
) -> None:
    if options.seed is not None:
        seeds.seed_item(options.seed, index)
    try:
        value = fn(*arguments)
    except Exception as error:
        error.add_note(note_of(index, arguments))
        if not options.collects:
            raise
        results.add(index, error, failed=True)
    else:
        results.add(index, value)
