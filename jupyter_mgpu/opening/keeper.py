"""The process of a kept pool: chooses its GPUs, starts it, and owns it until it ends.

It runs no code of users, and imports no torch. Its first kernel is at the other end of a socket
that it was started with; when that ends before the pool is ready, so does all of this.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.gpus import Choice, Notebook, Request
from jupyter_mgpu.keeping import Kernels
from jupyter_mgpu.keeping.connection import open_streams
from jupyter_mgpu.keeping.messages import describe_error
from jupyter_mgpu.on_engine import warning_filters
from jupyter_mgpu.opening.engine_plans import claims_of
from jupyter_mgpu.opening.new_pool import PoolOptions, choose, make_plan, warnings
from jupyter_mgpu.owner.owner_loop import OwnerLoop
from jupyter_mgpu.owner.plans import PoolPlan

ORDER = "order.json"
"""In the pool's folder: what the kernel has asked for."""
LEASE_END_S = 1.0


class Keeper:
    """Keeps one pool.

    Args:
        folder: The pool's private folder; the order is in it.
        first: Leads to the kernel that has started this process.
    """

    def __init__(self, folder: Path, first: socket.socket) -> None:
        order: dict[str, Any] = json.loads((folder / ORDER).read_text())
        self._folder = folder
        self._first = first
        self._order = order
        self._request = make_request(order["request"])
        self._options = PoolOptions(**order["options"])
        self._kernels = Kernels(order["request"])

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
            choice = choosing.result()
        except BaseException as error:  # noqa: BLE001 - the kernel gets it
            self._kernels.tell_first({"op": "failed", "error": describe_error(error)})
            return
        else:
            await self._keep(choice, hearing)
        finally:
            await self._kernels.close()

    def _choose(self) -> Choice:
        choice = choose(self._request, self._options, self._say)
        for sentence in [*choice.sentences, *warnings()]:
            self._say(sentence)
        return choice

    def _say(self, sentence: str) -> None:
        """Tell the user something, from any thread; nobody when there is no kernel."""
        message = {"op": "say", "message": sentence}
        self._loop.call_soon_threadsafe(self._kernels.tell_first, message)

    async def _keep(self, choice: Choice, hearing: "asyncio.Future[None]") -> None:
        core = OwnerLoop(self._plan(choice), self._kernels.on_event, outlives=True)
        self._kernels.own(core)
        serving = asyncio.ensure_future(core.serve())
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
            await serving
        finally:
            for claim in claims_of(choice).values():
                claim.drop(LEASE_END_S)

    def _plan(self, choice: Choice) -> PoolPlan:
        plan = make_plan(self._request, self._options, choice, self._folder, self._say)
        kernels = self._order["environment"]  # of its engines: what is told by other processes
        engines = tuple(
            replace(engine, environment={**engine.environment, **kernels})
            for engine in plan.engines
        )
        return replace(plan, engines=engines, is_kept=True)


def make_request(described: Mapping[str, Any]) -> Request:
    """Return the request that JSON has made lists of."""
    n, kernel = described["n"], described["kernel"]
    made = {
        "n": tuple(n) if isinstance(n, list) else n,
        "kernel": Notebook(kernel["pid"], tuple(kernel["contexts"])),
    }
    return Request(**{**described, **made})


def describe_kernel() -> dict[str, str]:
    """Describe what engines take from their kernel, for those that a keeper starts."""
    return {
        "MGPU_SYS_PATH": json.dumps(sys.path),
        warning_filters.VARIABLE: warning_filters.describe(),
    }


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
