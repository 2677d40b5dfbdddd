"""The owner of one pool, as the kernel holds it: its loop in a thread, asked from any other."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, TypeVar

from jupyter_mgpu.engines import PoolStatus
from jupyter_mgpu.errors import OwnerError, PoolClosedError
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.owner.owner_loop import OwnerLoop
from jupyter_mgpu.owner.plans import EnginePlan, PoolPlan
from jupyter_mgpu.owner.pool_owner import Listener
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.transport.cluster import PoolCluster
from jupyter_mgpu.wire import Frame, Header

CLIENT_S = 30.0

Result = TypeVar("Result")


class Owner:
    """Runs the owner loop of one pool, and hands requests to it. Any thread may call.

    Args:
        plan: The pool to start.
        listener: Called in the owner's thread with each event; must return at once.

    Attributes:
        store: Puts large data of the pool's messages into shared memory.
    """

    def __init__(self, plan: PoolPlan, listener: Listener) -> None:
        self.plan = plan
        self._core = OwnerLoop(plan, listener)
        self.store = self._core.store
        self._thread = threading.Thread(target=self._run, name="mgpu-owner", daemon=True)
        self._has_ended = threading.Event()

    def _run(self) -> None:
        try:
            self._core.run()
        finally:
            self._has_ended.set()

    # --- life --------------------------------------------------------------------------

    def start(self) -> Future[None]:
        """Start the pool; the future is done when every engine has said hello.

        Raises:
            PoolStartError: From the future, with the last lines of the engine that failed.
        """
        self._thread.start()
        return self._core.ready

    def stop(self, *, reason: str = "stopped") -> None:
        """End the pool: busy engines at once. Returns before it has ended; see `wait`."""
        if self._thread.ident is not None:
            self._core.has_begun.wait()
        with contextlib.suppress(PoolClosedError):
            self._call(self._core.stop, reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the owner; False when it took longer."""
        return self._has_ended.wait(timeout)

    # --- requests ----------------------------------------------------------------------

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._core.loop.call_soon_threadsafe(function, *args)
        except (RuntimeError, AttributeError):
            raise self._closed_error() from None

    def _run_soon(self, job: Coroutine[Any, Any, Result]) -> Future[Result]:
        try:
            return asyncio.run_coroutine_threadsafe(job, self._core.loop)
        except RuntimeError:
            job.close()
            raise self._closed_error() from None

    def _closed_error(self) -> PoolClosedError:
        return PoolClosedError(f"The pool {self.plan.name!r} has ended. Start one with %parpool.")

    def submit(self, task: Task) -> None:
        """Queue a task.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        if self._core.is_closing:
            raise self._closed_error()
        self._call(self._core.submit, task)

    def resend(self, task_id: str, rank: int, frames: list[Frame]) -> None:
        """Send a running cell again to a rank that lacked some of the names' parts."""
        self._call(lambda: self._core.scheduler.resend(task_id, rank, frames))

    def cancel(self, task_id: str) -> None:
        """Take a task out of the queue, or end it while it runs."""
        self._call(lambda: self._core.scheduler.cancel(task_id))

    def withdraw(self, task_ids: Sequence[str]) -> set[str]:
        """Take those tasks that still wait out of the queue; return their ids.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        if self._core.is_closing:
            raise self._closed_error()

        async def ask() -> set[str]:
            return self._core.scheduler.withdraw(task_ids)

        try:
            return self._run_soon(ask()).result(CLIENT_S)
        except (RuntimeError, TimeoutError, CancelledError):
            raise self._closed_error() from None

    def interrupt(self, task_id: str, *, force: bool = False) -> None:
        """Interrupt a running task; with `force`, replace the engines that still run it."""
        self._call(lambda: self._core.interrupt(task_id, force=force))

    def request_stop(self, task_id: str, after: StopAfter = "step") -> None:
        """Ask a task to end by itself, after its step or its epoch."""
        self._call(self._core.request_stop, task_id, after)

    def expect_collectives(self) -> None:
        """Make the first process group quick: call it when the kernel has torch loaded."""
        if not self._core.has_early_store:
            with contextlib.suppress(PoolClosedError):
                self._call(self._core.expect_collectives)

    def restart(self, ranks: Sequence[int] = ()) -> None:
        """Replace the engines of some ranks (all by default)."""
        self._call(self._core.restart, ranks)

    def flush_journal(self) -> None:
        """Have the records of ended tasks on disk; harmless when the pool has ended."""
        with contextlib.suppress(RuntimeError, TimeoutError, CancelledError):
            self._run_soon(self._core.flush_journal()).result(CLIENT_S)

    def set_idle_timeout(self, timeout_s: float | None) -> Future[None]:
        """Let the pool end after another time without use; None for never."""
        return self._run_soon(self._core.set_idle_timeout(timeout_s))

    def grow(
        self, plans: Sequence[EnginePlan], on_turn: Callable[[], None] = lambda: None
    ) -> Future[None]:
        """Add engines, after a call in its thread; the future is done when they are ready."""
        return self._run_soon(self._core.sizes.grow(plans, on_turn))

    def shrink(self, size: int) -> Future[None]:
        """End the engines of the last ranks; they must be idle."""
        return self._run_soon(self._core.sizes.shrink(size))

    def rpc(self, rank: int, name: str, /, **args: Any) -> Future[Any]:
        """Ask an engine something on its control channel, also while it is busy."""
        future: Future[Any] = Future()
        self._call(self._core.ask, future, rank, name, args)
        return future

    def post(self, rank: int, header: Header, frames: Sequence[Frame] = ()) -> None:
        """Send an engine's main thread a message without an answer, before the next task."""
        self._call(self._core.post, self.engines[rank], header, frames)

    def post_to_all(self, header: Header) -> None:
        """Send the main thread of every engine a message; harmless when the pool has ended."""
        with contextlib.suppress(PoolClosedError):
            for engine in list(self.engines.values()):
                self._call(self._core.post, engine, header, ())

    def answer(self, engine: str, header: Header, frames: Sequence[Frame]) -> None:
        """Answer what an engine has asked its kernel; harmless when the pool has ended."""
        with contextlib.suppress(PoolClosedError):
            self._call(self._core.answer, engine, header, frames)

    def client(self) -> Any:
        """Connect ipyparallel's own client; starts its controller at the first call."""
        connecting = self._run_soon(self._core.controller.client())
        try:
            return connecting.result(CLIENT_S)
        except TimeoutError:
            raise OwnerError(
                f"pool.client was asked for, but the pool {self.plan.name!r} had no connection to "
                f"its ipyparallel controller after {CLIENT_S:g} s: this machine is very busy, or a "
                "firewall is between. Ask again; %%spmd and parfeval need no controller."
            ) from None

    # --- what it is --------------------------------------------------------------------

    def status(self) -> PoolStatus:
        """Return what people see of the pool."""
        return self._core.status()

    def far_hosts(self) -> list[dict[str, Any]]:
        """Return what is known of other hosts, and have them read on; never waits."""
        return self._core.far_hosts() if self._core.has_begun.is_set() else []

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.plan.name

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have an engine, or get one again."""
        return tuple(self._core.engines)

    @property
    def engines(self) -> dict[int, EngineRecord]:
        """The engines by rank."""
        return self._core.engines

    def device(self, rank: int) -> str:
        """Return what a rank runs on, in words."""
        return self.engines[rank].place

    def log(self, rank: int) -> Path:
        """Return the file with all that a rank has printed."""
        return self.engines[rank].log

    @property
    def gpu_uuids(self) -> dict[int, tuple[str, ...]]:
        """The GPUs of each rank that has any."""
        plans = [engine.plan for engine in list(self.engines.values())]
        return {plan.rank: plan.gpu_uuids for plan in plans if plan.gpu_uuids}

    @property
    def cluster(self) -> PoolCluster:
        """The processes of the pool."""
        return self._core.cluster

    @property
    def socket(self) -> Path:
        """The unix socket that this owner answers on."""
        return self._core.socket

    @property
    def record_path(self) -> Path:
        """The pool's record in the runtime folder."""
        return self._core.record_path
