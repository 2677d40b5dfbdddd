"""`batch()`: one call on a pool of its own, which outlives the kernel and ends with the call."""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jupyter_mgpu import control
from jupyter_mgpu.client import check_call, name_of
from jupyter_mgpu.clusters import ClusterDescription
from jupyter_mgpu.errors import AttachError, SelectionError
from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.gpus import Request, check_request
from jupyter_mgpu.notebook import kernel_id, refuse_on_engine
from jupyter_mgpu.opening import PoolOptions, kept_pool, open_kept_pool
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.pools import find_pool
from jupyter_mgpu.start import IDLE_TIMEOUT_S, describe_cluster

START_TIMEOUT_S = 60.0


def batch(
    fn: Callable[..., Any],
    /,
    *args: Any,
    pool: int = 1,
    name: str | None = None,
    cluster: str | ClusterDescription | None = None,
    **kwargs: Any,
) -> TaskFuture:
    """Call a function on engines of its own; the call outlives this kernel.

    The engines end with the call. Its result, diary and metrics wait on disk: `%tasks` lists them
    in every notebook, and `tasks.load(name)` reads them. While it runs, `%parpool --attach NAME`
    brings it into another notebook.

    Args:
        fn: What to call; on several engines it is called on all of them at the same time, so that
            collectives work in it, and the result is that of rank 0.
        *args: Its arguments.
        pool: How many engines.
        name: What the task and its pool are called; the function's name and a number by default.
        cluster: Where the engines run, as in `parpool`; this machine by default.
        **kwargs: Its keyword arguments.

    Returns:
        The task's future.

    Raises:
        SelectionError: If there is a kept pool of that name, or the engines cannot be had.
        AttachError: If another kernel starts a kept pool of that name in the same moment.
        ClusterError: If the cluster is not described, or its description is wrong.
        PackingError: If the function or an argument cannot be pickled; it names which.

    Example:
        >>> future = batch(train_for_hours, learning_rate, pool=1, name="night")
    """
    refuse_on_engine("batch")
    if name is not None and (kept_pool(name) is not None or find_pool(name) is not None):
        raise SelectionError(
            f"The name {name!r} was given, but there is a pool {name!r}. Choose another name, or "
            f"end that one: `jupyter mgpu stop {name}`."
        )
    far = describe_cluster(cluster)
    request = Request(
        n=pool,
        pool=name or "",
        notebook=os.environ.get("JPY_SESSION_NAME"),
        kernel_id=kernel_id(),
        cluster=far.name if far is not None else None,
    )
    check_request(request)
    check_call(fn, args, kwargs)  # the engines may wait in a queue for hours
    options = PoolOptions(IDLE_TIMEOUT_S, wait=False, start_timeout_s=START_TIMEOUT_S)
    if name is not None:
        opened = open_kept_pool(request, options, far, in_background=True)
    else:
        opened = _open_under_free_name(name_of(fn), request, options, far)
    try:
        return opened.submission.job(fn, args, kwargs, opened.name)
    except BaseException:
        opened.shutdown(wait_for_tasks=False)
        raise


def _open_under_free_name(
    base: str, request: Request, options: PoolOptions, cluster: ClusterDescription | None
) -> Pool:
    taken = {pool.name for pool in control.find_pools()}
    while True:
        name = next(name for i in itertools.count(1) if (name := f"{base}-{i}") not in taken)
        try:
            return open_kept_pool(replace(request, pool=name), options, cluster, in_background=True)
        except AttachError:  # another kernel has taken it in this moment
            taken.add(name)
