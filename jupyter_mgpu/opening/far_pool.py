"""Opens a pool whose engines run on other hosts, whatever starts them there."""

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

from jupyter_mgpu.clusters import ClusterDescription
from jupyter_mgpu.errors import SelectionError
from jupyter_mgpu.gpus import Request
from jupyter_mgpu.opening.engine_plans import Say
from jupyter_mgpu.opening.far_plan import FarPlan
from jupyter_mgpu.opening.host_facts import check_hosts
from jupyter_mgpu.opening.new_pool import PoolOptions, private_folder, start_pool
from jupyter_mgpu.opening.scheduled_plan import plan_more_ranks, plan_scheduled_pool
from jupyter_mgpu.opening.ssh_growth import plan_more_over_ssh
from jupyter_mgpu.opening.ssh_plan import plan_ssh_pool
from jupyter_mgpu.output import notices
from jupyter_mgpu.owner.owner import Owner
from jupyter_mgpu.owner.plans import PoolPlan
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.rendezvous import Rendezvous

Planner = Callable[[Request, ClusterDescription, Path, Say], FarPlan]
"""Finds out what there is, and plans the engines; may use the pool's folder for its sockets."""


def planner_of(kind: str) -> Planner:
    """Return what plans a pool on a kind of cluster."""
    return plan_ssh_pool if kind == "ssh" else plan_scheduled_pool


def open_far_pool(request: Request, options: PoolOptions, description: ClusterDescription) -> Pool:
    """Open a pool on a cluster.

    Raises:
        SelectionError: If the engines or GPUs asked for cannot be had.
        PoolStartError: If an engine does not come up; it names the host.
    """
    folder = private_folder()
    far: FarPlan | None = None
    try:
        far, plan = plan_far_pool(request, options, description, folder, notices.say)
        return checked(start_pool(plan, request, far.claims), description)
    except BaseException:
        if far is not None:
            far.drop()
        rmtree(folder, ignore_errors=True)
        raise


def checked(pool: Pool, description: ClusterDescription) -> Pool:
    """Return a new pool if its hosts are right for it; else it is ended.

    Raises:
        PoolStartError: If Python, this package or a working folder does not fit.
    """
    try:
        check_hosts(pool, description)
    except BaseException:
        pool.shutdown(wait_for_tasks=False)
        raise
    return pool


def plan_far_pool(
    request: Request,
    options: PoolOptions,
    description: ClusterDescription,
    folder: Path,
    say: Say,
) -> tuple[FarPlan, PoolPlan]:
    """Plan a pool on a cluster, for the process that will own it.

    Returns:
        What must be dropped if the pool does not start, and the pool's plan.

    Raises:
        SelectionError: If the engines or GPUs asked for cannot be had.
        PoolStartError: If a host cannot be reached, or engines cannot run there.
    """
    check(request, options)
    far = planner_of(description.kind)(request, description, folder, say)
    try:
        for sentence in far.sentences:
            say(sentence)
        return far, _plan_pool(request, options, description, far, folder)
    except BaseException:
        far.drop()
        raise


def grow_far_pool(pool: Pool, owner: Owner, request: Request) -> None:
    """Add engines to a pool on a cluster.

    Args:
        pool: The pool.
        owner: Its owner.
        request: How many further engines.

    Raises:
        SelectionError: If they cannot be had; the pool is as it was then.
        PoolStartError: If one does not come up; likewise.
    """
    description = owner.plan.cluster
    if description is None:
        raise SelectionError(f"The pool {pool.name!r} does not know how it was started.")
    plan_more = plan_more_over_ssh if description.kind == "ssh" else plan_more_ranks
    plan = plan_more(request, owner, description)
    size = pool.size
    for sentence in plan.sentences:
        notices.say(sentence)
    try:
        pool.grow(plan.engines, plan.claims, plan.on_turn)
        try:
            check_hosts(pool, description, size)
        except BaseException:
            pool.shrink(size)
            raise
    except BaseException:
        plan.drop()
        raise


def _plan_pool(
    request: Request,
    options: PoolOptions,
    description: ClusterDescription,
    plan: FarPlan,
    folder: Path,
) -> PoolPlan:
    return PoolPlan(
        name=request.pool,
        engines=plan.engines,
        folder=folder,
        rendezvous=Rendezvous(*plan.addresses, run_id=plan.run_id),
        kernel_id=request.kernel_id,
        notebook=request.notebook,
        idle_timeout_s=options.idle_timeout_s,
        visible=request.visible,
        shares_gpu=request.per_gpu > 1,
        start_timeout_s=description.start_timeout_s or options.start_timeout_s,
        cluster=description,
    )


def check(request: Request, options: PoolOptions) -> None:
    """Refuse what a cluster cannot be asked.

    Raises:
        SelectionError: It says what to do.
    """
    if request.gpus is not None:
        raise SelectionError(
            f"--gpus {request.gpus} was asked for, but the hosts of a cluster have GPUs of their "
            "own: name them in the cluster's description, as `gpus` of each host."
        )
    if options.wait is not False:
        raise SelectionError(
            "--wait was asked for, but it waits for GPUs of this machine only, and the pool is on "
            "a cluster. Leave it out: a scheduler's queue is waited for in any case, and hosts of "
            "kind ssh give what they have free now."
        )
