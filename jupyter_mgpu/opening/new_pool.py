"""Opens a new pool: chooses the GPUs, plans the engines, starts them."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jupyter_mgpu import gpus as devices
from jupyter_mgpu import notebook, pools
from jupyter_mgpu.diagnosis import Outcome, check_shared_memory
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.gpus import Choice, Request
from jupyter_mgpu.leases import Claim
from jupyter_mgpu.opening.engine_plans import Say, claims_of, plan_engines
from jupyter_mgpu.output import notices
from jupyter_mgpu.owner.owner import Owner
from jupyter_mgpu.owner.plans import PoolPlan
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.rendezvous import Rendezvous
from jupyter_mgpu.sending import Sender

LONGEST_SOCKET_PATH = 80
"""A unix socket's path may have 107 bytes; the names of ours need some of them."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What `parpool` was asked for, beside the devices.

    Attributes:
        idle_timeout_s: Seconds without use after which the pool ends; None for never.
        wait: Wait until enough GPUs are free: True, or for at most so many seconds.
        start_timeout_s: Seconds that an engine may take to start.
    """

    idle_timeout_s: float | None
    wait: bool | float
    start_timeout_s: float


def open_pool(request: Request, options: PoolOptions) -> Pool:
    """Open a pool; from then on it is found by its name.

    Raises:
        SelectionError: If the engines or GPUs asked for cannot be had.
        GpuBusyError: If they are in use.
        PoolStartError: If an engine does not come up.
    """
    choice = choose(request, options)
    try:
        for sentence in [*choice.sentences, *warnings()]:
            notices.say(sentence)
        plan = make_plan(request, options, choice, private_folder())
        return start_pool(plan, request, claims_of(choice))
    except BaseException:
        choice.drop()
        raise


def start_pool(plan: PoolPlan, request: Request, claims: Mapping[int, Claim]) -> Pool:
    """Start what was planned, with an owner in this kernel; from then on its name finds it.

    Raises:
        PoolStartError: If an engine does not come up.
    """
    pool = Pool(
        partial(Owner, plan),
        request=request,
        claims=claims,
        sender=Sender(notebook.user_namespace(), hidden=notebook.hidden_names()),
        say=notices.say,
        on_end=pools.unregister,
    )
    notebook.watch_cells(pools.on_cell)
    pool.start()
    pools.register(pool)
    return pool


def warnings() -> list[str]:
    """Say what will trouble the engines later, in ways that are hard to trace back."""
    shared_memory = check_shared_memory()
    if shared_memory.outcome is Outcome.FAILED:
        return [f"{shared_memory.finding} {shared_memory.next_step}"]
    return []


def choose(request: Request, options: PoolOptions, say: Say = notices.say) -> Choice:
    """Choose and lease the GPUs, as soon as that may be."""
    if options.wait is False:
        return devices.choose(request)
    timeout = None if options.wait is True else float(options.wait)
    return devices.wait_for_free(request, timeout=timeout, on_wait=say)


def make_plan(
    request: Request,
    options: PoolOptions,
    choice: Choice,
    folder: Path,
    say: Say = notices.say,
) -> PoolPlan:
    """Plan a pool, and reserve the port where its ranks meet."""
    return PoolPlan(
        name=request.pool,
        engines=plan_engines(choice, len(choice.slots), say),
        folder=folder,
        rendezvous=Rendezvous(),
        kernel_id=request.kernel_id,
        notebook=request.notebook,
        idle_timeout_s=options.idle_timeout_s,
        visible=request.visible,
        shares_gpu=request.per_gpu > 1,
        start_timeout_s=options.start_timeout_s,
    )


def private_folder() -> Path:
    """Make the pool's folder: short enough for sockets, readable by this user only."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if base and len(base) < LONGEST_SOCKET_PATH and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="mgpu-", dir=base))
    raise MgpuError("No folder for the pool's sockets was found. Set TMPDIR to a writable one.")
