"""The process of a kept pool: chooses its GPUs, starts it, and owns it until it ends.

It runs no code of users, and imports no torch. Its first kernel is at the other end of a socket
that it was started with; when that ends before the pool is ready, so does all of this.
"""

import asyncio
import json
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters import ClusterDescription
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import ClusterError
from jupyter_mgpu.gpus import Notebook, Request
from jupyter_mgpu.keeping import Kernels
from jupyter_mgpu.keeping.connection import open_streams
from jupyter_mgpu.keeping.messages import describe_error
from jupyter_mgpu.keeping.name_lock import NameLock
from jupyter_mgpu.leases import Claim
from jupyter_mgpu.on_engine import warning_filters
from jupyter_mgpu.opening.engine_plans import claims_of
from jupyter_mgpu.opening.far_pool import plan_far_pool
from jupyter_mgpu.opening.new_pool import PoolOptions, choose, make_plan, warnings
from jupyter_mgpu.owner.owner_loop import OwnerLoop
from jupyter_mgpu.owner.plans import EnginePlan, PoolPlan
from jupyter_mgpu.transport.cluster import own_path

ORDER = "order.pickle"
"""In the pool's folder: what the kernel has asked for."""
LEASE_END_S = 1.0


@dataclass(frozen=True, slots=True)
class Order:
    """What a kernel asks a keeper for.

    Attributes:
        request: The engines.
        options: How the pool is started.
        cluster: Where its engines run, pickled by itself, as it may have objects of modules
            beside the notebook; None for this machine.
        here: Variables that engines of this machine take from the kernel.
        elsewhere: Those of engines on other hosts.
    """

    request: Request
    options: PoolOptions
    cluster: bytes | None
    here: Mapping[str, str]
    elsewhere: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A pool that may be started.

    Attributes:
        plan: The pool.
        claims: The leases of its engines on this machine.
        undo: Ends what was opened for it, if anything.
    """

    plan: PoolPlan
    claims: Mapping[int, Claim]
    undo: Callable[[], None] = lambda: None

    def drop(self) -> None:
        """Give everything back."""
        for claim in self.claims.values():
            claim.drop(LEASE_END_S)
        self.undo()


class Keeper:
    """Keeps one pool.

    Args:
        folder: The pool's private folder; the order is in it.
        first: Leads to the kernel that has started this process.
    """

    def __init__(self, folder: Path, first: socket.socket) -> None:
        self._order: Order = pickle.loads((folder / ORDER).read_bytes())
        self._folder = folder
        self._first = first
        self._name: NameLock | None = None
        self._kernels = Kernels(asdict(self._order.request))

    async def run(self) -> None:
        """Start the pool, and own it until it ends."""
        self._loop = asyncio.get_running_loop()
        reader, writer = await open_streams(self._first)
        hearing = asyncio.ensure_future(self._kernels.take_in(reader, writer))
        choosing = asyncio.wrap_future(call_in_thread(self._choose, "mgpu-choose"))
        both: list[asyncio.Future[Any]] = [choosing, hearing]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not choosing.done():
                return  # the kernel has ended, or was stopped: leases end with this process
            chosen = choosing.result()
        except BaseException as error:  # noqa: BLE001 - the kernel gets it
            self._kernels.tell_first({"op": "failed", "error": describe_error(error)})
            return
        else:
            await self._keep(chosen, hearing)
        finally:
            if self._name is not None:
                self._name.release()
            await self._kernels.close()

    def _choose(self) -> _Chosen:
        order, folder = self._order, self._folder
        self._name = NameLock(order.request.pool, _words_for(order.request))
        if order.cluster is not None:
            # Behind the libraries: a launcher of the user's may be beside the notebook.
            sys.path += json.loads(order.elsewhere["MGPU_SYS_PATH"])
            cluster = _unpickled(order.request.cluster, order.cluster)
            far, plan = plan_far_pool(order.request, order.options, cluster, folder, self._say)
            return _Chosen(self._kept(plan), far.claims, far.on_drop)
        choice = choose(order.request, order.options, self._say)
        for sentence in [*choice.sentences, *warnings()]:
            self._say(sentence)
        plan = make_plan(order.request, order.options, choice, folder, self._say)
        return _Chosen(self._kept(plan), claims_of(choice))

    def _say(self, sentence: str) -> None:
        """Tell the user something, from any thread; nobody when there is no kernel."""
        message = {"op": "say", "message": sentence}
        self._loop.call_soon_threadsafe(self._kernels.tell_first, message)

    async def _keep(self, chosen: _Chosen, hearing: "asyncio.Future[None]") -> None:
        core = OwnerLoop(chosen.plan, self._kernels.on_event, outlives=True)
        self._kernels.own(core)
        serving = asyncio.ensure_future(core.serve())
        serving.add_done_callback(lambda _: _tell_failure(core, serving))
        self._loop.add_signal_handler(signal.SIGTERM, core.stop, "its keeper was terminated")
        ready = asyncio.wrap_future(core.ready)
        try:
            await asyncio.wait({ready, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                core.stop("its kernel has ended before it was ready")
            try:
                await ready
            except BaseException as error:  # noqa: BLE001 - as above
                self._kernels.tell_first({"op": "failed", "error": describe_error(error)})
            else:
                await self._kernels.serve()
            await asyncio.wait({serving})  # what it fails with was told
        finally:
            chosen.drop()

    def _kept(self, plan: PoolPlan) -> PoolPlan:
        return replace(plan, engines=tuple(map(self._follow_kernel, plan.engines)), is_kept=True)

    def _follow_kernel(self, engine: EnginePlan) -> EnginePlan:
        """Give an engine what it would take from a kernel, and not from this process."""
        taken = self._order.here if engine.placement is None else self._order.elsewhere
        return replace(engine, environment={**engine.environment, **taken})


def _tell_failure(core: OwnerLoop, serving: "asyncio.Future[None]") -> None:
    """Let those who wait for a pool know what its owner has failed with before it could say so."""
    if not core.ready.done() and not serving.cancelled():
        core.ready.set_exception(serving.exception())


def _unpickled(name: str | None, packed: bytes) -> ClusterDescription:
    try:
        cluster: ClusterDescription = pickle.loads(packed)
    except Exception as error:
        raise ClusterError(
            f"The settings of the cluster {name!r} cannot be read by the keeper of a kept pool: "
            f"{type(error).__name__}: {error}. It imports what a file beside the notebook or an "
            "installed package has, and nothing else; or leave --keep out."
        ) from error
    return cluster


def _pickled(cluster: ClusterDescription) -> bytes:
    try:
        return pickle.dumps(cluster)
    except Exception as error:
        raise ClusterError(
            f"The settings of the cluster {cluster.name!r} cannot be sent to the keeper of a kept "
            f"pool: {type(error).__name__}: {error}. Change {cluster.place}, or leave --keep out."
        ) from error


def _words_for(request: Request) -> str:
    pid = request.kernel.pid if request.kernel is not None else "unknown"
    return f"the kernel of {request.notebook or 'another notebook'} (process {pid})"


def make_request(described: Mapping[str, Any]) -> Request:
    """Return the request that JSON has made lists of."""
    n, kernel = described["n"], described["kernel"]
    made = {
        "n": tuple(n) if isinstance(n, list) else n,
        "kernel": Notebook(kernel["pid"], tuple(kernel["contexts"])),
    }
    return Request(**{**described, **made})


def make_order(request: Request, options: PoolOptions, cluster: ClusterDescription | None) -> Order:
    """Make the order of this kernel.

    Raises:
        ClusterError: If settings of the cluster cannot be pickled.
    """
    filters = {warning_filters.VARIABLE: warning_filters.describe()}
    here = {"MGPU_SYS_PATH": json.dumps(sys.path), **filters}
    elsewhere = {"MGPU_SYS_PATH": json.dumps(own_path()), **filters}
    packed = None if cluster is None else _pickled(cluster)
    return Order(request, options, packed, here, elsewhere)


def main() -> None:
    """Run the keeper: `python -m jupyter_mgpu.opening.keeper FOLDER SOCKET`."""
    folder, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asyncio.run(Keeper(folder, socket.socket(fileno=descriptor)).run())
    finally:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # a thread may hang in a driver


if __name__ == "__main__":
    main()
