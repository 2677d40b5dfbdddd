"""The owner loop of one pool: its scheduler, engines, connections and records, put together.

    Owner, socket -> OwnerLoop -> Scheduler -> Switchboard -> engines
    engines -> Switchboard -> Scheduler -> `listener`, the client's inbox

It sees packed calls and metadata only, so it runs in a thread of the kernel or in a process of
its own alike.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jupyter_mgpu.engines import PoolStatus
from jupyter_mgpu.errors import OwnerError
from jupyter_mgpu.on_engine.stop_wish import StopAfter, check_after
from jupyter_mgpu.owner import endpoint, local_ranks, outside, records
from jupyter_mgpu.owner.controller_door import ControllerDoor
from jupyter_mgpu.owner.engine_record import Death, EngineRecord, read_tail
from jupyter_mgpu.owner.engine_room import EngineRoom
from jupyter_mgpu.owner.escalation import Escalation
from jupyter_mgpu.owner.far_hosts import FarHosts
from jupyter_mgpu.owner.idle import RESIDENT_BYTES, IdleClock
from jupyter_mgpu.owner.journal import Journal
from jupyter_mgpu.owner.plans import PoolPlan
from jupyter_mgpu.owner.pool_owner import Listener
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.owner.scheduler import Scheduler
from jupyter_mgpu.owner.sizes import Sizes
from jupyter_mgpu.owner.switchboard import Switchboard
from jupyter_mgpu.shared_memory import Store, is_shared
from jupyter_mgpu.transport.cluster import PoolCluster
from jupyter_mgpu.transport.far_port import FarPort
from jupyter_mgpu.wire import Frame, Header

TICK_S = 1.0
ANSWER_S = 1.0
CLOSE_S = 3.0
STORE_AFTER_S = 3.0
"""Its import of torch would slow that of a cell which comes at once."""


class OwnerLoop:
    """Owns one pool. Its methods run in its event loop, but for `run`, `status`, `far_hosts`.

    Args:
        plan: The pool to start.
        listener: Called in the loop's thread with each event; must return at once.
        outlives: Its process is not the kernel: what a kernel has sent is held here.

    Attributes:
        ready: Done when every engine has said hello, or the start has failed.
        store: Puts large data of the pool's messages into shared memory.
        has_begun: Set as soon as the loop can be asked to stop.
        has_early_store: Whether the store of the rendezvous starts before it is needed.
    """

    def __init__(self, plan: PoolPlan, listener: Listener, *, outlives: bool = False) -> None:
        self.plan = plan
        self._outlives = outlives
        self.store = Store(plan.folder, "kernel", keeps_recent=True)
        self.ready: Future[None] = Future()
        self.has_begun = threading.Event()
        self.is_closing = False
        self.has_early_store = False
        self._listener = listener
        self._token = secrets.token_hex(16)

    # --- life --------------------------------------------------------------------------

    def run(self) -> None:
        """Start the pool, and run until it has ended."""
        try:
            asyncio.run(self.serve())
        except BaseException as error:
            self.plan.rendezvous.close()
            shutil.rmtree(self.plan.folder, ignore_errors=True)
            if self.ready.done():
                raise  # nobody waits: the thread's excepthook shows it
            self.ready.set_exception(error)
        finally:
            self.has_begun.set()

    async def serve(self) -> None:
        """Do what `run` does, in an event loop that is there."""
        self.loop = asyncio.get_running_loop()
        self._starting = asyncio.current_task()
        self._stopping = asyncio.Event()
        self._build()
        self.has_begun.set()
        server = await endpoint.serve(self.socket, self._operations())
        try:
            self._save_record()
            await self._room.start(self.plan.engines)
            self._settle_rendezvous()
            self._save_record()
            self._starting = None
            self.ready.set_result(None)
            await self._tick_until_stopped()
        except BaseException as error:  # noqa: BLE001 - told to who waits for the start
            if self.ready.done():
                self.stop(f"its owner failed: {error!r}")
            else:
                self.ready.set_exception(error)
        finally:
            self._starting = None
            server.close()
            await self._close()

    def _build(self) -> None:
        url = f"ipc://{self.plan.folder}/s"
        self.journal = Journal(self.plan.name, self.loop.call_later, keeps_large=self._outlives)
        self.plan.rendezvous.watch(self.loop)
        self._far = self._open_far_port()
        self.cluster = PoolCluster(self.plan.folder, url, self._token, self._far)
        self._room = EngineRoom(
            self.cluster,
            self.plan.folder,
            self.record_path,
            self._environment,
            self._settle,
            self.plan.start_timeout_s,
            on_death=self._on_death,
            on_ready=self._on_replaced,
            on_failed_start=self._on_failed_start,
        )
        self._switchboard = Switchboard(
            url,
            self._token,
            self._room.find,
            on_hello=self._on_hello,
            on_message=lambda *message: self.scheduler.on_event(*message),
            store=self.store,
            loop=self.loop,
            far=self._far,
            holds=self._outlives,
        )
        self._escalation = Escalation(
            self.engines,
            self._switchboard.send_control,
            replace=self._room.replace,
            notify=self._notify,
        )
        self.scheduler = Scheduler(
            self.engines,
            self.journal,
            send=self._switchboard.send_work,
            notify=self._notify,
            free=self._escalation.begin,
            call_later=self.loop.call_later,
        )
        self.sizes = Sizes(
            self.plan.name, self._room, self.scheduler, self._lose, self._save_record
        )
        self.controller = ControllerDoor(
            self.plan, self.cluster, self.engines, self._switchboard.ask
        )
        self._hosts = FarHosts(self.plan.name, self.engines, self._sample_soon)
        self._idle = IdleClock(self.plan.idle_timeout_s, self._resident_bytes, self._notify)

    def _open_far_port(self) -> FarPort | None:
        """Listen for engines of other hosts, where the ranks meet for collectives as well."""
        is_far = any(engine.placement is not None for engine in self.plan.engines)
        if self.plan.cluster is None and not is_far:
            return None
        return FarPort(self.plan.rendezvous.addresses, self.loop)

    def _settle_rendezvous(self) -> None:
        """Have the ranks meet where all of them have reached this host."""
        rendezvous = self.plan.rendezvous
        processes = [engine.process for engine in self.engines.values()]
        rendezvous.settle({(p and p.way) or rendezvous.addresses[0] for p in processes})
        if self._far is not None:
            self._far.address = rendezvous.addresses[0]

    def _on_hello(self, engine: EngineRecord) -> None:
        engine.sample_memory()
        engine.hello.set()
        self.controller.invite(engine)

    def expect_collectives(self) -> None:
        """Start the store of the rendezvous before the first group needs it."""
        if not self.has_early_store and not self.is_closing:
            self.has_early_store = True
            self.loop.call_later(STORE_AFTER_S, self.plan.rendezvous.start_store)

    def _environment(self, engine: EngineRecord, size: int) -> dict[str, str]:
        return self.plan.rendezvous.environment(
            engine.rank,
            size,
            self.scheduler.generation,
            visible=self.plan.visible,
            shares_gpu=self.plan.shares_gpu,
            place=engine.plan.place,
        )

    async def _settle(self, engine: EngineRecord) -> None:
        others = [other for other in self._room.known.values() if other is not engine]
        place = local_ranks.settle(engine, others)
        if place is not None:
            told: Future[Any] = Future()
            self._switchboard.ask(told, engine, "settle", {"local_rank": place})
            with contextlib.suppress(OwnerError):  # it has died, which is seen elsewhere
                await asyncio.wrap_future(told)

    async def _tick_until_stopped(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), TICK_S)
            self.store.age()
            for engine in self.engines.values():
                engine.sample_memory()
            self._hosts.tick()
            self.scheduler.tell_waiting()
            is_used = bool(self.scheduler.tasks) or self._room.is_growing
            if await self._idle.is_over(self.scheduler.used_s, is_used=is_used):
                self.stop("idle")

    def stop(self, reason: str) -> None:
        """End the pool: busy engines at once."""
        if not self.is_closing:
            self.is_closing = True
            self.scheduler.cancel_all("the pool was stopped")
            self._notify({"op": "pool_ended", "reason": reason})
        self._stopping.set()
        if self._starting is not None:
            self._starting.cancel()

    async def _close(self) -> None:
        self.is_closing = True
        self._escalation.close()
        async with (
            contextlib.AsyncExitStack() as steps
        ):  # from the last to the first, come what may
            steps.callback(self.record_path.unlink, missing_ok=True)  # until then others may ask
            steps.callback(shutil.rmtree, self.plan.folder, ignore_errors=True)
            steps.callback(self.journal.finish)
            steps.callback(self.store.close)
            steps.callback(self._switchboard.close)
            if self._far is not None:
                steps.callback(self._far.close)
            steps.push_async_callback(self.cluster.stop)
            steps.callback(self.plan.rendezvous.close)
            steps.callback(self._switchboard.fail_questions, "The pool has ended.")
            unkillable = await self._room.close(CLOSE_S)
            if unkillable:
                self._notify({"op": "unkillable", "pids": unkillable})

    # --- requests ----------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Queue a task."""
        if self.is_closing:
            self.scheduler.end(task, "cancelled", reason="the pool was stopped")
        else:
            self.scheduler.submit(task)

    def interrupt(self, task_id: str, *, force: bool = False) -> None:
        """Interrupt a running task; with `force`, replace the engines that still run it."""
        task = self.scheduler.tasks.get(task_id)
        if task is not None:
            task.retries = 0
        if force:
            self._escalation.force(task_id)
        elif task is not None and task.state == "queued":
            self.scheduler.cancel(task_id)
        elif task is not None:
            self._escalation.begin(task)

    def request_stop(self, task_id: str, after: StopAfter = "step") -> None:
        """Ask a task to end by itself, after its step or its epoch; one that waits as it starts."""
        check_after(after)
        task = self.scheduler.tasks.get(task_id)
        if task is None:
            return
        if task.header.get("stop_after") != "step":
            task.header = {**task.header, "stop_after": after}
        for rank in sorted(task.running_on):
            header = {"op": "request_stop", "task": task_id, "after": after}
            self._switchboard.send_control(self.engines[rank], header)

    def restart(self, ranks: Sequence[int] = ()) -> None:
        """Replace the engines of some ranks (all by default)."""
        for rank in ranks or list(self.engines):
            why = f"The engine of rank {rank} was restarted on request."
            self._room.replace(self.engines[rank], why)

    async def flush_journal(self) -> None:
        """Write the records of ended tasks to disk now."""
        self.journal.flush()

    async def set_idle_timeout(self, timeout_s: float | None) -> None:
        """Let the pool end after another time without use; None for never."""
        self.plan = replace(self.plan, idle_timeout_s=timeout_s)
        self._idle.set_timeout(timeout_s)

    def set_kernel(self, pid: int | None, kernel_id: str | None, notebook: str | None) -> None:
        """Take note of the kernel that is attached now, None for no one."""
        self.plan = replace(self.plan, attached_pid=pid, kernel_id=kernel_id, notebook=notebook)
        self._save_record()

    def ask(self, future: Future[Any], rank: int, name: str, args: dict[str, Any]) -> None:
        """Ask an engine something on its control channel, also while it is busy."""
        engine = self.engines.get(rank)
        if self.is_closing:
            future.set_exception(OwnerError("The pool has ended."))
        elif engine is None or not engine.is_alive:
            state = "not in the pool" if engine is None else engine.state
            future.set_exception(OwnerError(f"Rank {rank} cannot answer: it is {state}."))
        else:
            self._switchboard.ask(future, engine, name, args)

    def post(self, engine: EngineRecord, header: Header, frames: Sequence[Frame]) -> None:
        """Send an engine's main thread a message without an answer, before the next task."""
        self._switchboard.send_work(engine, header, list(frames))

    def post_to_all(self, header: Header) -> None:
        """Send the main thread of every engine a message."""
        for engine in list(self.engines.values()):
            self.post(engine, header, ())

    def answer(self, name: str, header: Header, frames: Sequence[Frame]) -> None:
        """Answer what an engine has asked its kernel; nobody, if it was replaced meanwhile."""
        engine = self._room.find(name)
        if engine is not None:
            if not any(map(is_shared, frames)):
                frames = self.store.place(frames)
            self._switchboard.send_control(engine, header, frames)

    def status(self) -> PoolStatus:
        """Return what people see of the pool."""
        tasks = list(self.scheduler.tasks.values())
        running = sum(1 for task in tasks if task.state == "running")
        return PoolStatus(
            name=self.plan.name,
            kernel_pid=os.getpid(),
            kernel_id=self.plan.kernel_id,
            notebook=self.plan.notebook,
            started=self.plan.started,
            generation=self.scheduler.generation,
            idle_timeout_s=self.plan.idle_timeout_s,
            engines=tuple(engine.status() for engine in list(self.engines.values())),
            queued=len(tasks) - running,
            running=running,
            is_kept=self.plan.is_kept,
            attached_pid=self.plan.attached_pid,
            notes=(*self.cluster.notes(), *self._room.losses()),
        )

    def far_hosts(self) -> list[dict[str, Any]]:
        """Return what is known of other hosts, and have them read on; see `FarHosts.look`."""
        return self._hosts.look() if self._far is not None else []

    def _sample_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._hosts.tick)

    @property
    def engines(self) -> dict[int, EngineRecord]:
        """The engines by rank."""
        return self._room.engines

    @property
    def socket(self) -> Path:
        """The unix socket that this owner answers on."""
        return self.plan.folder / "owner.sock"

    @property
    def record_path(self) -> Path:
        """The pool's record in the runtime folder."""
        return records.folder() / f"{self.plan.folder.name}.json"

    # --- events ------------------------------------------------------------------------

    def _notify(self, header: Header, frames: list[Frame] | None = None) -> None:
        self._listener(header, frames or [])

    def _on_death(self, engine: EngineRecord, death: Death) -> None:
        was_busy = engine.task is not None
        event = {"op": "engine_died", "rank": engine.rank, "was_busy": was_busy}
        self._notify({**event, **asdict(death)})
        self._lose(engine, death)

    def _lose(self, engine: EngineRecord, death: Death) -> None:
        """Let those who wait for an engine know that it has ended."""
        self._switchboard.forget(engine)
        self._switchboard.fail_questions(death.message, engine.rank)
        self.scheduler.on_death(engine, death)

    def _on_replaced(self, engine: EngineRecord) -> None:
        if engine.rank in self.engines:  # else it still waits for others that join the pool with it
            self._notify({"op": "engine_replaced", "rank": engine.rank, "device": engine.place})
        self.scheduler.schedule()
        self._save_record()

    def _on_failed_start(self, engine: EngineRecord, why: str) -> None:
        self._notify({"op": "engine_lost", "rank": engine.rank, "message": why})
        self.scheduler.fail_hopeless()

    async def _resident_bytes(self) -> int:
        """Ask the engines how many bytes of the user's data they hold."""
        asked: list[Future[Any]] = []
        for rank, engine in self.engines.items():
            if engine.is_alive:
                asked.append(Future())
                self.ask(asked[-1], rank, "resident_bytes", {})
        answers = asyncio.gather(*map(asyncio.wrap_future, asked), return_exceptions=True)
        try:
            counts = await asyncio.wait_for(answers, ANSWER_S)
        except TimeoutError:
            return RESIDENT_BYTES + 1  # who cannot say what it holds may hold much
        return sum(count for count in counts if isinstance(count, int))

    # --- records and the socket --------------------------------------------------------

    def _save_record(self) -> None:
        record = records.describe(self.plan, self.socket, self.engines.values())
        records.write(self.record_path, record)

    def _diary(self, task: str, size: int = 65536) -> str:
        return outside.diary_of(self.scheduler.tasks, self.journal, task)[-size:]

    def _operations(self) -> dict[str, endpoint.Operation]:
        return {
            "status": lambda: self.status().to_dict(),
            "tasks": lambda: [
                self.journal.describe(task) for task in self.scheduler.tasks.values()
            ],
            "look": lambda: {
                "status": self.status().to_dict(),
                **outside.describe_tasks(self.scheduler.tasks.values(), self.journal),
                "hosts": self.far_hosts(),
            },
            "interrupt": outside.on_each(self.scheduler.tasks, self.interrupt),
            "cancel": outside.on_each(self.scheduler.tasks, self.scheduler.cancel),
            "request_stop": outside.refuse_loop(self.scheduler.tasks, self.request_stop),
            "diary": self._diary,
            "restart": self.restart,
            "stop": lambda: self.stop("stopped from outside"),
            "log": lambda rank, size=65536: read_tail(self.engines[rank].log, size),
        }
