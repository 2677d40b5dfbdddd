"""Calls in the background: one on the next free engine, or one on every engine."""

from collections.abc import Callable, Sequence
from typing import Any

from jupyter_mgpu import futures as task_futures
from jupyter_mgpu.futures import TaskFuture, run_in_place
from jupyter_mgpu.notebook import refuse_on_engine
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.output.status_line import follow
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.pools import open_pools
from jupyter_mgpu.start import pool_named


def parfeval(
    fn: Callable[..., Any],
    /,
    *args: Any,
    pool: Pool | None = None,
    name: str | None = None,
    priority: int = 0,
    timeout: float | None = None,
    retries: int = 0,
    **kwargs: Any,
) -> TaskFuture:
    """Call a function in the background on the next free engine.

    Starts a pool if there is none. The arguments are packed now: the task does not see later
    changes. On an engine the call runs at once, in place.

    Args:
        fn: What to call; a function of the notebook needs no import or push.
        *args: Its arguments.
        pool: Where to run; the current pool by default.
        name: What the task is called.
        priority: Higher ones start first.
        timeout: Seconds from its start after which it is ended.
        retries: How often it is run again when its engine dies.
        **kwargs: Its keyword arguments.

    Returns:
        The task's future.

    Raises:
        PackingError: If the function or an argument cannot be pickled; it names which.

    Example:
        >>> future = parfeval(train, learning_rate, name="small")
    """
    if context.current() is not None:
        return run_in_place(fn, args, kwargs)
    future = (pool or pool_named(None)).submit_task(
        fn, args, kwargs, name=name, priority=priority, timeout=timeout, retries=retries
    )
    follow(future)
    return future


def parfeval_on_all(
    fn: Callable[..., Any], /, *args: Any, pool: Pool | None = None, **kwargs: Any
) -> list[TaskFuture]:
    """Call a function once on every engine, each as soon as it is free.

    Returns:
        One future per rank, in rank order.
    """
    refuse_on_engine("parfeval_on_all")
    pool = pool or pool_named(None)
    return [pool.submit_task(fn, args, kwargs, rank=rank) for rank in pool.ranks]


def cancel_all(futures: Sequence[TaskFuture] | None = None) -> int:
    """Cancel every future that has not ended.

    Args:
        futures: Which; by default all tasks and loops of this notebook's pools.

    Returns:
        How many were cancelled.
    """
    if futures is None:
        futures = [future for pool in open_pools() for future in pool.tasks()]
    return task_futures.cancel_all(futures)
