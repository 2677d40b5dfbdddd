"""`parpool()`: what was asked for becomes a pool, a new one or the open one."""

import os
from collections.abc import Sequence
from typing import Literal

from jupyter_mgpu import clusters, control
from jupyter_mgpu.clusters import ClusterDescription
from jupyter_mgpu.errors import MgpuError, SelectionError
from jupyter_mgpu.gpus import Request, check_request
from jupyter_mgpu.notebook import kernel_id, refuse_on_engine
from jupyter_mgpu.opening import (
    PoolOptions,
    attach_pool,
    kept_pool,
    open_far_pool,
    open_kept_pool,
    open_pool,
    resize,
)
from jupyter_mgpu.output import notices, pool_status
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.pools import find_pool, latest_pool, open_pools
from jupyter_mgpu.transport.profiles import describe_profile

IDLE_TIMEOUT_S = 30 * 60.0


def parpool(
    n: int | tuple[int, int] | None = None,
    *,
    gpus: str | Sequence[int] | None = None,
    per_gpu: int = 1,
    gpus_per_engine: int = 1,
    name: str | None = None,
    idle_timeout: float | None = IDLE_TIMEOUT_S,
    wait: bool | float = False,
    share: bool = False,
    visible: Literal["own", "pool"] = "own",
    restart: bool = False,
    keep: bool = False,
    attach: str | None = None,
    cluster: str | ClusterDescription | None = None,
    profile: str | None = None,
    start_timeout: float = 60.0,
) -> Pool:
    """Start a pool of engines with one GPU each, or return the open one.

    Without GPUs the engines run on the CPU, and the reason is told. An open pool of the same
    name is kept: asking for more engines adds some, asking for fewer ends the last ones, and an
    idle time other than the default is its new one.

    Args:
        n: How many engines: exactly, from-to as a pair, or one per free GPU.
        gpus: nvidia-smi's numbers in rank order (`"1,3"`, `"0-3"`, `[1, 3]`), or UUIDs.
        per_gpu: Engines that share each GPU.
        gpus_per_engine: GPUs that each engine gets.
        name: Tells pools of this kernel apart; "pool" by default.
        idle_timeout: Seconds without use after which the pool ends; None or 0 for never.
        wait: Wait until enough GPUs are free: True, or for at most so many seconds.
        share: Use GPUs that others use as well.
        visible: "own" shows an engine its own GPUs, "pool" all GPUs of the pool.
        restart: End an open pool of that name first, with its tasks and variables.
        keep: Let it outlive this kernel, with its tasks, results and variables. It needs a name;
            a kept pool of that name which no kernel has is attached instead.
        attach: The name of a kept pool to attach this kernel to; it is taken as it is.
        cluster: Where the engines run: a cluster of the clusters file, "local", "slurm", "mpi" or
            the name of an ipyparallel launcher; or a description.
        profile: An existing ipyparallel profile that says where they run.
        start_timeout: Seconds that an engine may take to start.

    Raises:
        SelectionError: If the engines or GPUs asked for cannot be had; it says what can.
        ClusterError: If the cluster is not described, or its description is wrong.
        AttachError: If there is no such kept pool, or another kernel has it; it is named.
        GpuBusyError: If they are in use; it names by whom.
        PoolStartError: If an engine does not come up; it has that engine's last lines.

    Example:
        >>> pool = parpool(2, gpus="1,3")
    """
    refuse_on_engine("parpool")
    options = PoolOptions(idle_timeout or None, wait, start_timeout)
    if attach is not None:
        beside = {
            "N": n is not None,
            "gpus": gpus is not None,
            "per_gpu": per_gpu != 1,
            "gpus_per_engine": gpus_per_engine != 1,
            "name": name is not None,
            "wait": wait is not False,
            "share": share,
            "visible": visible != "own",
            "restart": restart,
            "cluster": cluster is not None,
            "profile": profile is not None,
        }
        return _attach(attach, options, [option for option, is_given in beside.items() if is_given])
    far = describe_cluster(cluster, profile)
    request = Request(
        n=n,
        gpus=_gpus_text(gpus),
        per_gpu=per_gpu,
        gpus_per_engine=gpus_per_engine,
        share=share,
        visible=visible,
        pool=name or "pool",
        notebook=os.environ.get("JPY_SESSION_NAME"),
        kernel_id=kernel_id(),
        cluster=far.name if far is not None else None,
    )
    _check_request(request)
    if keep and name is None:
        raise SelectionError(
            "--keep was asked for without a name, but a pool that outlives its kernel is found by "
            "one: %parpool 2 --keep --name night."
        )
    if restart:
        _stop(request.pool, keep=keep)
    pool = find_pool(request.pool)
    if keep:
        pool = _kept(pool, request.pool)
    if pool is not None:
        return _set_idle(resize(pool, request, options), options)
    if keep:
        return open_kept_pool(request, options, far)
    return open_pool(request, options) if far is None else open_far_pool(request, options, far)


def _stop(name: str, *, keep: bool) -> None:
    pool = find_pool(name)
    if pool is not None:
        pool.shutdown(wait_for_tasks=False)
    elif keep and (found := kept_pool(name)) is not None and found.is_without_kernel:
        control.stop(found)


def _kept(pool: Pool | None, name: str) -> Pool | None:
    """Return the kept pool of a name, attached; None if there is none so far."""
    if pool is None:
        return _attach(name, None) if kept_pool(name) is not None else None
    if not pool.is_kept:
        raise SelectionError(
            f"--keep was asked for, but the pool {name!r} is open and lives with this kernel. "
            "Choose another --name, or add --restart: its tasks and variables are lost then."
        )
    return pool


def _attach(name: str, options: PoolOptions | None, beside: Sequence[str] = ()) -> Pool:
    if beside:
        raise SelectionError(
            f"--attach {name} was given together with {', '.join(beside)}, but a pool is attached "
            "as it is. Leave that out."
        )
    pool = find_pool(name)
    if pool is not None and not pool.is_kept:
        raise SelectionError(
            f"--attach {name} was asked for, but an open pool of this kernel has that name. "
            f"Stop it first: %parpool stop --name {name}."
        )
    if pool is None:
        pool = attach_pool(name)
        notices.say(pool_status.attached_line(pool.status(), len(pool.ended_tasks())))
    return pool if options is None else _set_idle(pool, options)


def _set_idle(pool: Pool, options: PoolOptions) -> Pool:
    if options.idle_timeout_s != IDLE_TIMEOUT_S:
        pool.owner.set_idle_timeout(options.idle_timeout_s).result()
    return pool


def current_pool(*, create: bool = False) -> Pool | None:
    """Return the open pool that was started last, or None.

    Args:
        create: Start one if there is none.
    """
    pool = latest_pool()
    return parpool() if pool is None and create else pool


def pool_named(name: str | None) -> Pool:
    """Return an open pool by name; without one the current pool, started if there is none.

    Raises:
        MgpuError: If there is no pool of that name.
    """
    if name is None:
        return latest_pool() or parpool()
    pool = find_pool(name)
    if pool is None:
        listed = ", ".join(pool.name for pool in open_pools()) or "none"
        raise MgpuError(f"The pool {name!r} was asked for, but open pools are: {listed}.")
    return pool


def describe_cluster(
    cluster: str | ClusterDescription | None, profile: str | None = None
) -> ClusterDescription | None:
    """Look up where the engines run; None for this machine."""
    if cluster is not None and profile is not None:
        raise SelectionError(
            f"--cluster {cluster} and --profile {profile} were both asked for; give one of them."
        )
    if profile is not None:
        cluster = describe_profile(profile)
    elif isinstance(cluster, str):
        cluster = clusters.find(cluster)
    return None if cluster is None or cluster.kind == "local" else cluster


def _gpus_text(gpus: str | Sequence[int] | None) -> str | None:
    if gpus is None or isinstance(gpus, str):
        return gpus
    return ",".join(str(index) for index in gpus)


def _check_request(request: Request) -> None:
    numbers = request.n if isinstance(request.n, tuple) else (request.n,)
    for number in numbers:
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise SelectionError(f"{number!r} engines were asked for; give a whole number.")
    check_request(request)
