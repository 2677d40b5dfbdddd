"""Starts pools, and makes an open pool larger or smaller when it is asked for again."""

import contextlib
import json
import os
import re
import secrets
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jupyter_mgpu import gpus as devices
from jupyter_mgpu import cuda, host
from jupyter_mgpu.errors import MgpuError, SelectionError
from jupyter_mgpu.gpus import Choice, Request, Slot
from jupyter_mgpu.gpus.pinning import compare
from jupyter_mgpu.nvml import Inventory
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
    is_restart: bool


def parpool(
    n: int | tuple[int, int] | None = None,
    *,
    gpus: str | Sequence[int] | None = None,
    per_gpu: int = 1,
    gpus_per_engine: int = 1,
    name: str | None = None,
    idle_timeout: float | None = IDLE_TIMEOUT_S,
    wait: bool | float = False,  # noqa: FBT001, FBT002 - keyword-only
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
    options = PoolOptions(idle_timeout or None, wait, restart)
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
        return _resize(pool, request)
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
    for sentence in choice.sentences:
        notices.say(sentence)
    try:
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
        pool = Pool(plan, user_namespace(), notices.say)
        pool.request = request
        _watch_cells()
        pool.at_end(choice.drop)
        return pool.start()
    except BaseException:
        choice.drop()
        raise


def _choose(request: Request, wait: bool | float) -> Choice:  # noqa: FBT001 - as parpool takes it
    if wait is False:
        return devices.choose(request)
    timeout = None if wait is True else float(wait)
    return devices.wait_for_free(request, timeout=timeout, on_wait=notices.say)


def _plan_engines(choice: Choice, world_size: int) -> tuple[EnginePlan, ...]:
    threads = max(1, _usable_cores() // world_size)
    return tuple(_plan_engine(slot, threads, choice.inventory) for slot in choice.slots)


def _plan_engine(slot: Slot, threads: int, inventory: Inventory) -> EnginePlan:
    device = ", ".join(f"{device.label} ({device.name})" for device in slot.devices) or "CPU"
    environment = dict(slot.environment)
    environment["MGPU_WARNINGS"] = json.dumps(_warning_filters())
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
        return proof.is_proven, proof.error

    return prove


def _usable_cores() -> int:
    quota = host.cpu_quota() or float("inf")
    return max(1, int(min(len(os.sched_getaffinity(0)), quota)))


def _warning_filters() -> list[list[Any]]:
    """Describe the kernel's warning filters in plain values, for the engines."""
    described = []
    for action, message, category, module, line in warnings.filters:
        patterns = [p.pattern if isinstance(p, re.Pattern) else p for p in (message, module)]
        kind = f"{category.__module__}:{category.__qualname__}"
        described.append([action, patterns[0], kind, patterns[1], line])
    return described


def _private_folder() -> Path:
    """Make the pool's folder: short enough for sockets, readable by this user only."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - mkdtemp makes it safe
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


def _resize(pool: Pool, request: Request) -> Pool:
    """Bring an open pool to the size that is asked for now."""
    named = len(request.gpus.split(",")) if request.gpus else None
    if request.gpus and request.gpus != getattr(pool.request, "gpus", None):
        raise SelectionError(
            f"--gpus {request.gpus} was asked for, but the pool {pool.name!r} is open on other "
            f"devices ({', '.join(pool.device(rank) for rank in pool.ranks)}). Add --restart to "
            "end it first; its variables and tasks are lost then."
        )
    wanted = request.largest or named or pool.size
    if request.smallest <= pool.size <= wanted:
        return pool
    if wanted > pool.size:
        return _grow(pool, request, wanted)
    pool.shrink(wanted)
    return pool


def _grow(pool: Pool, request: Request, wanted: int) -> Pool:
    more = replace(request, n=wanted - pool.size, gpus=None, first_rank=pool.size)
    choice = devices.choose(more)
    try:
        pool.grow(_plan_engines(choice, wanted))
    except BaseException:
        choice.drop()
        raise
    pool.at_end(choice.drop)
    return pool


