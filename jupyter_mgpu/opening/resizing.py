"""Makes an open pool larger or smaller, or another one, when it is asked for again."""

from collections.abc import Iterable
from dataclasses import replace

from jupyter_mgpu import gpus as devices
from jupyter_mgpu.engines import Rank
from jupyter_mgpu.errors import SelectionError
from jupyter_mgpu.gpus import Request
from jupyter_mgpu.keeping.kept_owner import fixed_size
from jupyter_mgpu.opening.engine_plans import claims_of, plan_engines
from jupyter_mgpu.opening.far_pool import check, grow_far_pool
from jupyter_mgpu.opening.new_pool import PoolOptions, choose, open_pool
from jupyter_mgpu.output import notices
from jupyter_mgpu.owner.owner import Owner
from jupyter_mgpu.pool import Pool


def resize(pool: Pool, request: Request, options: PoolOptions) -> Pool:
    """Bring an open pool to the size, and to the GPUs, that are asked for now.

    Returns:
        The pool, or a new one that has taken its place.

    Raises:
        SelectionError: If tasks or variables would be lost; it names them.
    """
    is_far = pool.request.cluster is not None
    if request.cluster is not None and request.cluster != pool.request.cluster:
        raise SelectionError(_elsewhere(pool, request.cluster))
    if is_far:
        check(request, options)
    more = _more(pool, request)
    if not isinstance(pool.owner, Owner):
        if more is None or not more.smallest <= pool.size <= (more.largest or pool.size):
            raise fixed_size(pool.name, pool.size)
        return pool
    if more is None and is_far:
        raise SelectionError(
            f"Other options were asked for than those of the pool {pool.name!r} on the cluster "
            f"{pool.request.cluster!r}. Add --restart to end it first, with what is there."
        )
    if more is None:
        return _reopen(pool, request, options)
    if pool.size < more.smallest or (more.largest or 0) > pool.size:
        further = _further(more, pool.size)
        if is_far:
            grow_far_pool(pool, pool.owner, further)
        else:
            _grow(pool, further, options)
    elif more.largest is not None and more.largest < pool.size:
        _shrink(pool, more.largest)
    return pool


def _elsewhere(pool: Pool, cluster: str) -> str:
    own = pool.request.cluster
    where = "this machine" if own is None else f"the cluster {own!r}"
    return (
        f"The cluster {cluster!r} was asked for, but the pool {pool.name!r} is open with "
        f"{pool.size} engines on {where}. Add --restart to end it first, or another --name to "
        "have both."
    )


def _reopen(pool: Pool, request: Request, options: PoolOptions) -> Pool:
    lost = [*_losses(pool, pool.ranks), *(f"task {task.name!r}" for task in pool.tasks())]
    if lost:
        open_on = ", ".join(pool.device(rank) for rank in pool.ranks)
        raise SelectionError(
            f"Other GPUs or options were asked for, but the pool {pool.name!r} is open on "
            f"{open_on}, and would lose what is there: {'; '.join(lost)}. Add --restart to "
            "lose it, or another --name to have both."
        )
    pool.shutdown(wait_for_tasks=False)
    return open_pool(request, options)


def _more(pool: Pool, request: Request) -> Request | None:
    """Say what an open pool should become by growing or shrinking; None if that cannot be."""
    had = pool.request
    for option, default in (("per_gpu", 1), ("gpus_per_engine", 1), ("visible", "own")):
        asked = getattr(request, option)
        if asked not in (default, getattr(had, option)):
            return None
    wish = replace(
        request,
        per_gpu=had.per_gpu,
        gpus_per_engine=had.gpus_per_engine,
        visible=had.visible,
        first_rank=pool.size,
    )
    if wish.gpus is not None:
        named = [device.uuid for device in devices.named(wish.gpus)]
        held = list(dict.fromkeys(u for r in pool.ranks for u in pool.gpu_uuids.get(r, ())))
        if held[: len(named)] != named[: len(held)]:
            return None
        if wish.n is None:
            wish = replace(wish, n=wish.num_engines(len(named)))
        wish = replace(wish, gpus=",".join(named[len(held) :]) or None)
    if wish.visible == "pool" and (wish.largest or 0) > pool.size:
        return None  # the engines that run would have to see the new GPUs as well
    return wish


def _further(more: Request, size: int) -> Request:
    """Ask for those engines alone that a pool of a size lacks."""
    least, most = max(1, more.smallest - size), (more.largest or more.smallest) - size
    return replace(more, n=most if least == most else (least, most))


def _grow(pool: Pool, further: Request, options: PoolOptions) -> None:
    choice = choose(further, options)
    try:
        if pool.gpu_uuids and not choice.has_gpus:
            raise SelectionError(" ".join(choice.sentences))
        for sentence in choice.sentences if choice.has_gpus else ():
            notices.say(sentence)
        plans = plan_engines(choice, pool.size + len(choice.slots))
        pool.grow(plans, claims_of(choice))
    except BaseException:
        choice.drop()
        raise


def _shrink(pool: Pool, size: int) -> None:
    losses = _losses(pool, pool.ranks[size:])
    if losses:
        raise SelectionError(
            f"A pool of {size} was asked for, but that would lose what is there: "
            f"{'; '.join(losses)}. Add --restart to lose it."
        )
    pool.shrink(size)


def _losses(pool: Pool, ranks: Iterable[int]) -> list[str]:
    """Say what would be lost with the engines of some ranks: tasks and variables."""
    losses = []
    tasks = {engine.rank: engine.task for engine in pool.engines}
    for rank in ranks:
        task = tasks.get(Rank(rank))
        names = sorted(pool.sender.names_on(rank))
        if task is not None:
            losses.append(f"rank {rank} runs {task!r}")
        if names:
            losses.append(f"rank {rank} has {', '.join(names[:8])}")
    return losses
