"""`parfor`: a function over items, on all engines."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jupyter_mgpu import kept_loops
from jupyter_mgpu.client import name_of
from jupyter_mgpu.futures import TaskFuture, run_in_place
from jupyter_mgpu.loops.items import Items
from jupyter_mgpu.loops.loop import Loop, OnPacked
from jupyter_mgpu.loops.options import LoopOptions, OnError, check_call
from jupyter_mgpu.loops.results import OnResult
from jupyter_mgpu.loops.serial import run_serially
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.output import notices, publisher
from jupyter_mgpu.output.progress_bar import ProgressBar
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.start import pool_named

ENDS_WITH_KERNEL = (
    "This loop ends with its kernel, though its pool does not: nobody knows how many items will "
    "come. Give a list, and all of them are sent at once."
)


def parfor(
    fn: Callable[..., Any],
    /,
    *iterables: Iterable[Any],
    seed: int | None = None,
    chunk: int | None = None,
    workers: int | None = None,
    on_error: OnError = "raise",
    wait: bool = True,
    pool: Pool | None = None,
    name: str | None = None,
) -> Any:
    """Call a function with each item, on all engines, and return the results in loop order.

    Starts a pool if there is none. Iterables are read as `zip` reads them and only as far as
    needed, so they may be generators, or endless: then the loop runs until it is stopped. The
    function, with the notebook's names that it uses, is packed once and sent once to each engine;
    each item is packed for itself. In an engine the loop runs serially, in place.

    An error of an item, a Stop and `cancel()` end the loop; the exception then has what was
    finished in `error.results`, a dict by index. When an engine dies, the item that it ran fails;
    items that it had beside that one go to another engine.

    Args:
        fn: What to call.
        *iterables: What to loop over; with several, fn gets one argument from each.
        seed: Gives item i the same random numbers whatever the engines and chunks: Python's,
            NumPy's and torch's global generators are seeded by `(seed, i)` before it. Their states
            from before the loop come back after each chunk.
        chunk: How many items are sent together; chosen by their measured duration by default.
        workers: Use at most so many engines; 0 runs the loop in the kernel, where breakpoints work.
        on_error: "raise" ends the loop with the first failing item; "collect" puts exceptions in
            the place of results.
        wait: False returns a future of the list at once; the loop goes on in the background. On
            a kept pool all items are read and sent then, where their number is known, and the loop
            outlives this kernel: each part of it is a task.
        pool: Where to run; the current pool by default.
        name: What the loop is called.

    Returns:
        The list of results, or its future.

    Raises:
        PackingError: If the function or an item cannot be pickled; it names which part.
        KeyboardInterrupt: At a Stop, within 2 s.
        BaseException: What the first failing item raised; its notes name item and rank.

    Example:
        >>> parfor(train, [0.1, 0.01, 0.001], seed=0)
    """
    options = LoopOptions(seed, chunk, workers, on_error, name)
    return run_loop(fn, iterables, options, wait=wait, pool=pool)


def run_loop(
    fn: Callable[..., Any],
    iterables: Sequence[Iterable[Any]],
    options: LoopOptions,
    *,
    wait: bool = True,
    pool: Pool | None = None,
    on_result: OnResult | None = None,
    on_packed: OnPacked | None = None,
) -> Any:
    """Run a loop as `parfor` does.

    Args:
        fn: What to call.
        iterables: What to loop over.
        options: How.
        wait: False returns a future at once.
        pool: Where to run; the current pool by default.
        on_result: Called with index and result in loop order, each as soon as those before it are
            there, in the thread that waits; the results are not kept then.
        on_packed: Called with the bytes of the function, with all that it uses, before anything is
            sent; not called where nothing is.
    """
    check_call(fn, iterables)
    if context.current() is None and options.workers != 0:
        pool = pool or pool_named(None)
        if pool.is_kept and not wait and (total := Items(iterables).total) is not None:
            return kept_loops.start(pool, fn, iterables, _wish(pool, fn, options, total))
        if pool.is_kept and not wait:
            notices.say(ENDS_WITH_KERNEL)
        loop = Loop(pool, fn, iterables, options, on_result, on_packed)
        return loop.run() if wait else loop.start()
    if wait:
        return _run_here(fn, iterables, options, on_result)
    return _future_of_run_here(fn, iterables, options, on_result)


def _wish(
    pool: Pool, fn: Callable[..., Any], options: LoopOptions, total: int
) -> kept_loops.LoopWish:
    return kept_loops.LoopWish(
        name=options.name or pool.submission.name_for(fn),
        total=total,
        seed=options.seed,
        chunk=options.chunk,
        workers=options.workers,
        collects=options.collects,
    )


def _run_here(
    fn: Callable[..., Any],
    iterables: Sequence[Iterable[Any]],
    options: LoopOptions,
    on_result: OnResult | None,
) -> list[Any]:
    is_nested = context.current() is not None
    name = options.name or f"parfor {name_of(fn)}"
    bar = None if is_nested else ProgressBar(publisher.capture(), name)
    return run_serially(fn, iterables, options, Items(iterables).total, bar, on_result)


def _future_of_run_here(*args: Any) -> TaskFuture:
    return run_in_place(_run_here, args, {})
