"""Opens pools that outlive their kernel, and attaches this kernel to those that are open."""

import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jupyter_mgpu import children, exchange, notebook, pools
from jupyter_mgpu.clusters import ClusterDescription
from jupyter_mgpu.control import FoundPool, find_pools, named
from jupyter_mgpu.errors import AttachError
from jupyter_mgpu.gpus import Request, this_notebook
from jupyter_mgpu.keeping import KeptOwner
from jupyter_mgpu.keeping.keeper_link import LOG
from jupyter_mgpu.keeping.kernels import SOCKET
from jupyter_mgpu.opening.far_pool import checked
from jupyter_mgpu.opening.keeper import ORDER, make_order, make_request
from jupyter_mgpu.opening.new_pool import PoolOptions, private_folder
from jupyter_mgpu.output import notices
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.sending import Sender
from jupyter_mgpu.sending.follow import working_folder

_HANDLES_PER_KERNEL = 1 << 40
_NUMBERS_PER_KERNEL = 1 << 32


def open_kept_pool(
    request: Request,
    options: PoolOptions,
    cluster: ClusterDescription | None = None,
    *,
    in_background: bool = False,
) -> Pool:
    """Start a keeper with a new pool, and attach to it.

    Args:
        request: What is asked for.
        options: Likewise.
        cluster: Where its engines run; None for this machine.
        in_background: It does not become the current pool.

    Raises:
        SelectionError: If the engines or GPUs asked for cannot be had.
        GpuBusyError: If they are in use.
        PoolStartError: If an engine does not come up, or a host does not fit.
        AttachError: If another kernel starts one of that name.
    """
    order = make_order(replace(request, kernel=this_notebook()), options, cluster)
    folder = private_folder()
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            descriptor = os.open(folder / ORDER, os.O_WRONLY | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                pickle.dump(order, file)
            with (folder / LOG).open("wb") as written:
                log = (folder / LOG).open("rb")
                process = subprocess.Popen(
                    [
                        *(sys.executable, *children.interpreter_flags(), "-P"),
                        *("-m", "jupyter_mgpu.opening.keeper", str(folder), str(theirs.fileno())),
                    ],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=written,
                    env={**os.environ, "PYTHONPATH": children.python_path()},
                    start_new_session=True,  # no signal to the kernel's group reaches it
                )
    except BaseException:
        ours.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    owner = KeptOwner(request.pool, folder, log, ours, _kernel(), notices.say, process)
    try:
        pool = _attached(owner, in_background=in_background)
    except BaseException:
        if process.poll() is not None:  # before it could remove the folder
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return pool if cluster is None else checked(pool, cluster)


def attach_pool(name: str) -> Pool:
    """Attach this kernel to a kept pool.

    Raises:
        AttachError: If there is none of that name, or another kernel has it.
    """
    found = kept_pool(name)
    if found is None:
        names = sorted(pool.name for pool in find_pools() if is_attachable(pool))
        listed = ", ".join(map(repr, names)) or "none"
        raise AttachError(
            f"There is no kept pool {name!r} to attach to. Kept pools are: {listed}. "
            "`%parpool 2 --keep --name NAME` starts one; results of ended tasks are on disk: "
            "tasks.list()."
        )
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(found.folder / SOCKET))
        log = (found.folder / LOG).open("rb")
    except OSError as error:
        connection.close()
        raise AttachError(
            f"The pool {name!r} starts or ends in this moment, or its keeper (process "
            f"{found.kernel_pid}) hangs: {error.strerror}. Try it again."
        ) from error
    owner = KeptOwner(found.name, found.folder, log, connection, _kernel(), notices.say)
    return _attached(owner)


def kept_pool(name: str) -> FoundPool | None:
    """Find a kept pool of this user by its name or id.

    Raises:
        NoSuchPoolError: If several have that name.
    """
    pools = find_pools()
    is_known = any(name in (pool.name, pool.id) for pool in pools if is_attachable(pool))
    return named(name, pools=filter(is_attachable, pools)) if is_known else None


def is_attachable(pool: FoundPool) -> bool:
    """Tell whether a pool is one that a kernel can be attached to."""
    return pool.is_kept and not pool.is_orphaned


def _attached(owner: KeptOwner, *, in_background: bool = False) -> Pool:
    owner.attach()
    facts = owner.snapshot
    session = facts["session"]
    pool = Pool(
        owner.hear,
        request=make_request(facts["request"]),
        claims={},
        sender=Sender(
            notebook.user_namespace(),
            hidden=notebook.hidden_names(),
            first_handle=session * _HANDLES_PER_KERNEL + 1,
        ),
        say=notices.say,
        on_end=pools.unregister,
        first_number=session * _NUMBERS_PER_KERNEL + 1,
    )
    notebook.watch_cells(pools.on_cell)
    pool.restore(facts.pop("tasks"), facts.pop("ended"))
    exchange.modules.know(pool.line, facts.pop("modules"))
    pool.start()
    pools.register(pool, in_background=in_background)
    for name in facts.pop("lost_loops"):
        notices.say(
            f"The loop {name!r} has ended with its kernel, which had its results. In the "
            "background (wait=False), over a list, it would have gone on."
        )
    return pool


def _kernel() -> Mapping[str, Any]:
    return {
        "kernel_id": notebook.kernel_id(),
        "notebook": os.environ.get("JPY_SESSION_NAME"),
        "folder": working_folder(),
        "path": list(sys.path),
    }
