"""Starts pools, and makes an open pool larger or smaller when it is asked for again."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jupyter_mgpu import cuda, host
from jupyter_mgpu import gpus as devices
from jupyter_mgpu.errors import MgpuError, SelectionError
from jupyter_mgpu.gpus import Choice, Request, Slot
from jupyter_mgpu.gpus.pinning import compare
from jupyter_mgpu.leases import Claim
from jupyter_mgpu.nvml import Inventory
from jupyter_mgpu.on_engine import warning_filters
from jupyter_mgpu.output import notices
from jupyter_mgpu.owner.engine_record import EnginePlan
from jupyter_mgpu.owner.owner import PoolPlan
from jupyter_mgpu.pool import Pool, find_pool, latest_pool, open_pools, refuse_on_engine
from jupyter_mgpu.rendezvous import Rendezvous

IDLE_TIMEOUT_S = 30 * 60.0
LONGEST_SOCKET_PATH = 80
"""A unix socket's path may have 107 bytes; the names of ours need some of them."""

_SOON = "it is not built yet. Leave it out: the pool then lives on this machine, with this kernel"


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What `parpool` was asked for, beside the devices."""

    idle_timeout: float | None
    wait: bool | float


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
    cluster: str | None = None,
    profile: str | None = None,
    start_timeout: float = 60.0,
) -> Pool:
    """Start a pool of engines with one GPU each, or return the open one.

    Without GPUs the engines run on the CPU, and the reason is told. An open pool of the same
    name is kept: asking for more engines adds some, asking for fewer ends the last ones.

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
        keep: Refused for now, as are `attach`, `cluster` and `profile`.
        attach: Refused for now.
        cluster: Refused for now.
        profile: Refused for now.
        start_timeout: Seconds that an engine may take to start.

    Raises:
        SelectionError: If the engines or GPUs asked for cannot be had; it says what can.
        GpuBusyError: If they are in use; it names by whom.
        PoolStartError: If an engine does not come up; it has that engine's last lines.

    Example:
        >>> pool = parpool(2, gpus="1,3")
    """
    refuse_on_engine("parpool")
    _refuse_unbuilt(keep=keep, attach=attach, cluster=cluster, profile=profile)
    options = PoolOptions(idle_timeout or None, wait)
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
    )
    _check_request(request)
    pool = find_pool(request.pool)
    if pool is not None and restart:
        pool.shutdown(wait_for_tasks=False)
        pool = None
    if pool is not None:
        return _resize(pool, request, options, start_timeout)
    return _start(request, options, start_timeout)


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


def _refuse_unbuilt(**options: Any) -> None:
    for option, value in options.items():
        if value:
            raise SelectionError(f"--{option} was asked for, but {_SOON}.")


def _gpus_text(gpus: str | Sequence[int] | None) -> str | None:
    if gpus is None or isinstance(gpus, str):
        return gpus
    return ",".join(str(index) for index in gpus)


def _check_request(request: Request) -> None:
    numbers = request.n if isinstance(request.n, tuple) else (request.n,)
    for number in numbers:
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise SelectionError(f"{number!r} engines were asked for; give a whole number.")


def _start(request: Request, options: PoolOptions, start_timeout: float) -> Pool:
    choice = _choose(request, options.wait)
    try:
        for sentence in choice.sentences:
            notices.say(sentence)
        folder = _private_folder()
        plan = PoolPlan(
            name=request.pool,
            engines=_plan_engines(choice, len(choice.slots)),
            folder=folder,
            rendezvous=Rendezvous(),
            kernel_id=request.kernel_id,
            notebook=request.notebook,
            idle_timeout_s=options.idle_timeout,
            visible=request.visible,
            shares_gpu=request.per_gpu > 1,
            start_timeout_s=start_timeout,
        )
        pool = Pool(plan, user_namespace(), notices.say, getattr(_shell(), "user_ns_hidden", None))
        pool.request = request
        _watch_cells()
        pool.claims.update(_claims(choice))
        return pool.start()
    except BaseException:
        choice.drop()
        raise


def _choose(request: Request, wait: bool | float) -> Choice:  # noqa: FBT001 - as parpool takes it
    if wait is False:
        return devices.choose(request)
    timeout = None if wait is True else float(wait)
    return devices.wait_for_free(request, timeout=timeout, on_wait=notices.say)


def _claims(choice: Choice) -> dict[int, Claim]:
    return {slot.rank: slot.claim for slot in choice.slots if slot.claim is not None}


def _plan_engines(choice: Choice, world_size: int) -> tuple[EnginePlan, ...]:
    threads = max(1, _usable_cores() // world_size)
    return tuple(_plan_engine(slot, threads, choice.inventory) for slot in choice.slots)


def _plan_engine(slot: Slot, threads: int, inventory: Inventory) -> EnginePlan:
    device = ", ".join(f"{device.label} ({device.name})" for device in slot.devices) or "CPU"
    environment = dict(slot.environment)
    environment[warning_filters.VARIABLE] = warning_filters.describe()
    if "OMP_NUM_THREADS" not in os.environ:
        environment["OMP_NUM_THREADS"] = str(threads)
    place = slot.visible.index(slot.devices[0]) if slot.devices else 0
    return EnginePlan(
        rank=slot.rank,
        device=device,
        torch_device=f"cuda:{place}" if slot.devices else "cpu",
        environment=environment,
        prove=_prover(slot, inventory),
    )


def _prover(slot: Slot, inventory: Inventory) -> Callable[[], tuple[bool, str | None]] | None:
    """Make the function that asks CUDA what a slot's environment shows."""
    if not slot.devices:
        return None

    def prove() -> tuple[bool, str | None]:
        (answer,) = cuda.visible_uuids([{**os.environ, **slot.environment}])
        proof = compare(slot.rank, slot.visible, answer, inventory.devices)
        if proof.warning is not None:
            notices.say(proof.warning)
        return proof.is_proven, proof.error

    return prove


def _usable_cores() -> int:
    quota = host.cpu_quota() or float("inf")
    return max(1, int(min(len(os.sched_getaffinity(0)), quota)))


def _private_folder() -> Path:
    """Make the pool's folder: short enough for sockets, readable by this user only."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if base and len(base) < LONGEST_SOCKET_PATH and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="mgpu-", dir=base))
    raise MgpuError("No folder for the pool's sockets was found. Set TMPDIR to a writable one.")


def _watch_cells() -> None:
    """Let the pools know which names each cell of the notebook has bound."""
    shell = _shell()
    if shell is not None and not getattr(shell, "_mgpu_watched", False):
        shell._mgpu_watched = True  # noqa: SLF001 - our own mark
        shell.events.register("post_run_cell", _on_cell)


def _on_cell(result: Any) -> None:
    for pool in open_pools():
        pool.sender.cell_finished(result.info.raw_cell or "", failed=not result.success)


def _shell() -> Any:
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    return get_ipython()


def kernel_id() -> str | None:
    """Return the Jupyter server's id of this kernel, None outside one."""
    if "ipykernel" not in sys.modules:
        return None
    with contextlib.suppress(Exception):
        from ipykernel.connect import get_connection_file

        name = Path(get_connection_file()).stem
        return name.removeprefix("kernel-") if name.startswith("kernel-") else None
    return None


def user_namespace() -> dict[str, Any]:
    """Return the notebook's namespace; a script's `__main__` outside IPython."""
    shell = _shell()
    return sys.modules["__main__"].__dict__ if shell is None else shell.user_ns


def _resize(pool: Pool, request: Request, options: PoolOptions, start_timeout: float) -> Pool:
    """Bring an open pool to the size, and to the GPUs, that are asked for now."""
    more = _more(pool, request)
    if more is None:
        lost = [*pool.losses(pool.ranks), *(f"task {name!r}" for name in pool.pending())]
        if lost:
            open_on = ", ".join(pool.device(rank) for rank in pool.ranks)
            raise SelectionError(
                f"Other GPUs or options were asked for, but the pool {pool.name!r} is open on "
                f"{open_on}, and would lose what is there: {'; '.join(lost)}. Add --restart to "
                "lose it, or another --name to have both."
            )
        pool.shutdown(wait_for_tasks=False)
        return _start(request, options, start_timeout)
    if pool.size < more.smallest or (more.largest or 0) > pool.size:
        return _grow(pool, more, options.wait)
    if more.largest is not None and more.largest < pool.size:
        pool.shrink(more.largest)
    return pool


def _more(pool: Pool, request: Request) -> Request | None:
    """Say what an open pool should become by growing or shrinking; None if that cannot be."""
    had: Request = pool.request
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
        held = list(dict.fromkeys(u for r in pool.ranks for u in pool.claims[r].gpu_uuids))
        if held[: len(named)] != named[: len(held)]:
            return None
        if wish.n is None:
            wish = replace(wish, n=wish.num_engines(len(named)))
        wish = replace(wish, gpus=",".join(named[len(held) :]) or None)
    if wish.visible == "pool" and (wish.largest or 0) > pool.size:
        return None  # the engines that run would have to see the new GPUs as well
    return wish


def _grow(pool: Pool, more: Request, wait: bool | float) -> Pool:  # noqa: FBT001 - as parpool takes it
    least, most = more.smallest - pool.size, (more.largest or more.smallest) - pool.size
    choice = _choose(replace(more, n=(max(1, least), most)), wait)
    try:
        if pool.claims and not choice.has_gpus:
            raise SelectionError(" ".join(choice.sentences))
        for sentence in choice.sentences if choice.has_gpus else ():
            notices.say(sentence)
        pool.grow(_plan_engines(choice, pool.size + len(choice.slots)))
        pool.claims.update(_claims(choice))
    except BaseException:
        choice.drop()
        raise
    return pool
