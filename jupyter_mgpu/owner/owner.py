"""The owner loop of one pool: hands out tasks, watches engines, replaces dead ones.

The path of a task: `submit` (any thread) -> TaskQueue -> ROUTER -> an engine -> `_on_done` ->
`listener` (the client's thread takes it from there). It sees packed calls and metadata only, so
it runs as a thread of the kernel or in a process of its own alike.
"""

import asyncio
import contextlib
import hmac
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import zmq

from jupyter_mgpu.engines import EngineState, PoolStatus
from jupyter_mgpu.errors import OwnerError, PoolClosedError, PoolStartError
from jupyter_mgpu.on_engine import guard
from jupyter_mgpu.owner import endpoint, records
from jupyter_mgpu.owner.engine_record import (
    EnginePlan,
    EngineRecord,
    describe_exit,
    oom_kills,
    read_tail,
)
from jupyter_mgpu.owner.escalation import Escalation
from jupyter_mgpu.owner.idle import IdleClock
from jupyter_mgpu.owner.journal import Journal
from jupyter_mgpu.owner.queue import Task, TaskQueue
from jupyter_mgpu.rendezvous import Rendezvous
from jupyter_mgpu.transport.cluster import PoolCluster
from jupyter_mgpu.wire import Frame, Header, decode, encode

START_TIMEOUT_S = 60.0
MAX_FAILED_STARTS = 3
TICK_S = 1.0

Listener = Callable[[Header, list[Frame]], None]


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What a pool is started with.

    Attributes:
        name: Unique among this user's pools.
        engines: One plan per rank, in rank order.
        folder: The pool's private folder (0700); removed at the end.
        prove: Returns the UUIDs that CUDA sees under an environment.
        kernel_id: The Jupyter kernel, if there is one.
        notebook: Its notebook, if known.
        idle_timeout_s: After how long an unused pool ends; None for never.
    """

    name: str
    engines: tuple[EnginePlan, ...]
    folder: Path
    rendezvous: Rendezvous
    prove: Callable[[dict[str, str]], Sequence[str]] | None = None
    kernel_id: str | None = None
    notebook: str | None = None
    idle_timeout_s: float | None = None
    visible: Literal["own", "pool"] = "own"
    shares_gpu: bool = False
    start_timeout_s: float = START_TIMEOUT_S
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


class Owner:
    """Owns one pool: its queue, its engines, its records.

    Methods without `_` may be called from any thread.

    Args:
        plan: The pool to start.
        listener: Called in the owner's thread with each event; must return at once.
    """

    def __init__(self, plan: PoolPlan, listener: Listener) -> None:
        self.plan = plan
        self.generation = 0
        self.engines = {
            engine.rank: EngineRecord(engine, plan.folder / f"rank{engine.rank}.log")
            for engine in plan.engines
        }
        self.tasks: dict[str, Task] = {}  # queued and running ones
        self.journal = Journal(plan.name)
        self._listener = listener
        self._queue = TaskQueue()
        self._token = secrets.token_hex(16)
        self._known: set[bytes] = set()
        self._rpcs: dict[int, Future[tuple[Any, list[Frame]]]] = {}
        self._escalation = Escalation(self)
        self._idle = IdleClock(self, plan.idle_timeout_s)
        self._is_closing = False
        self._is_dirty = False  # a rank's process group broke since the last gang
        self._background: set[asyncio.Task[Any]] = set()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="mgpu-owner", daemon=True)
        self._stopped = threading.Event()

    # --- life --------------------------------------------------------------------------

    def start(self) -> Future[None]:
        """Start the pool; the future is done when every engine has said hello.

        Raises:
            PoolStartError: From the future, with the last lines of the engine that failed.
        """
        self._thread.start()
        return self._ready

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        finally:
            self._stopped.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_event = asyncio.Event()
        url = f"ipc://{self.plan.folder}/s"
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.sndhwm = self._router.rcvhwm = 0
        self._router.linger = 0
        self._router.bind(url)
        self._loop.add_reader(self._router.fd, self._on_router)
        self._cluster = PoolCluster(self.plan.folder, url, self._token)
        self.plan.rendezvous.watch(self._loop)
        server = await endpoint.serve(self.socket, self._operations())
        try:
            await self._start_all()
            self._ready.set_result(None)
            ticker = self._spawn(self._tick())
            await self._stop_event.wait()
            ticker.cancel()
        except BaseException as error:  # noqa: BLE001 - told to who waits for the start
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            server.close()
            await self._close()

    async def _start_all(self) -> None:
        await self._cluster.start_controller()
        self._save_record()
        await asyncio.gather(*(self._start_engine(engine) for engine in self.engines.values()))
        self._save_record()

    async def _start_engine(self, engine: EngineRecord) -> None:
        """Start one rank's process and wait for its hello and proof."""
        engine.hello.clear()
        engine.state = EngineState.STARTING
        environment = {
            **engine.plan.environment,
            **self.plan.rendezvous.environment(
                engine.rank,
                len(self.engines),
                self.generation,
                visible=self.plan.visible,
                shares_gpu=self.plan.shares_gpu,
            ),
            "MGPU_DEVICE": engine.plan.torch_device,
            "MGPU_LOG": str(engine.log),
        }
        proof = self._spawn(self._prove(engine))
        engine.process = await self._cluster.start_engine(
            engine.rank, engine.starts, environment, self.record_path
        )
        self._loop.add_reader(engine.process.pidfd, self._on_death, engine)
        try:
            async with asyncio.timeout(self.plan.start_timeout_s):
                await engine.hello.wait()
                await proof
        except TimeoutError:
            words = engine.last_words(self._cluster.output_of(engine.rank))
            raise PoolStartError(
                f"The engine of rank {engine.rank} did not start within "
                f"{self.plan.start_timeout_s:g} s (process {engine.process.pid}). "
                f"Its last lines: {words or 'none'}"
            ) from None
        if engine.state is EngineState.DEAD:
            raise PoolStartError(engine.doom or f"The engine of rank {engine.rank} did not start.")
        engine.failed_starts = 0
        engine.state = EngineState.IDLE
        engine.free.set()

    async def _prove(self, engine: EngineRecord) -> None:
        """Ask CUDA, in a child with the engine's environment, which GPUs it would get."""
        if not engine.plan.uuids or self.plan.prove is None:
            return
        seen = await asyncio.to_thread(self.plan.prove, engine.plan.environment)
        engine.proven = tuple(seen) == engine.plan.uuids
        if not engine.proven:
            raise PoolStartError(
                f"Rank {engine.rank} was to run on {', '.join(engine.plan.uuids)}, but CUDA would "
                f"give it {', '.join(seen) or 'no GPU'}. Run jupyter_mgpu.doctor() to see why."
            )

    def stop(self, *, reason: str = "stopped") -> None:
        """End the pool: busy engines at once. Returns before it has ended; see `wait`."""
        self._call(self._stop, reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the owner; False when it took longer."""
        return self._stopped.wait(timeout)

    def _stop(self, reason: str) -> None:
        if not self._is_closing:
            self._is_closing = True
            for task in list(self.tasks.values()):
                self._end(task, "cancelled", reason="the pool was stopped")
            self._notify({"op": "pool_ended", "reason": reason})
        self._stop_event.set()

    async def _close(self) -> None:
        self._is_closing = True
        for engine in self.engines.values():
            if engine.process is not None:
                engine.process.kill()
        for job in list(self._background):
            job.cancel()
        self._fail_rpcs("the pool ended")
        self.plan.rendezvous.close()
        with contextlib.suppress(Exception):
            await self._cluster.stop()
        unkillable = await self._wait_for_ends()
        if unkillable:
            self._notify({"op": "unkillable", "pids": unkillable})
        self._loop.remove_reader(self._router.fd)
        self._router.close()
        self._context.term()
        self.journal.close()
        await asyncio.to_thread(shutil.rmtree, self.plan.folder, True)
        self.record_path.unlink(missing_ok=True)  # last: until here others may still ask

    async def _wait_for_ends(self) -> list[int]:
        """Wait for the killed engines; returns who is left after 3 s (blocked in a driver)."""
        deadline = self._loop.time() + 3.0
        left = {e.process.pid: e for e in self.engines.values() if e.process is not None}
        while left and self._loop.time() < deadline:
            for pid, engine in list(left.items()):
                if engine.process is None or not engine.process.signal(0):
                    left.pop(pid)
            if left:
                await asyncio.sleep(0.01)
        return sorted(left)

    # --- requests from any thread ------------------------------------------------------

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except (RuntimeError, AttributeError):
            raise PoolClosedError(
                f"The pool {self.plan.name!r} has ended. Start one with %parpool."
            ) from None

    def submit(self, task: Task) -> None:
        """Queue a task.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        if self._is_closing:
            raise PoolClosedError(
                f"The pool {self.plan.name!r} has ended. Start one with %parpool."
            )
        self._call(self._submit, task)

    def cancel(self, task_id: str) -> None:
        """Take a task out of the queue, or end it while it runs."""
        self._call(self._cancel, task_id)

    def interrupt(self, task_id: str, *, force: bool = False) -> None:
        """Interrupt a running task; with `force`, replace the engines that still run it."""
        self._call(self._escalation.force if force else self._escalation.begin, task_id)

    def request_stop(self, task_id: str) -> None:
        """Ask a running task to end by itself."""
        self._call(self._to_ranks_of, task_id, "request_stop")

    def restart(self, ranks: Sequence[int] = ()) -> None:
        """Replace the engines of some ranks (all by default)."""
        self._call(self._restart, list(ranks))

    def rpc(
        self, rank: int, name: str, frames: Sequence[Frame] = (), **args: Any
    ) -> Future[tuple[Any, list[Frame]]]:
        """Ask an engine something on its control channel, also while it is busy."""
        future: Future[tuple[Any, list[Frame]]] = Future()
        self._call(self._rpc, future, rank, name, list(frames), args)
        return future

    def post(self, rank: int, header: Header, frames: Sequence[Frame] = ()) -> None:
        """Send a message without an answer on an engine's control channel."""
        self._call(self._send_control, self.engines[rank], header, list(frames))

    def status(self) -> PoolStatus:
        """Return what people see of the pool."""
        running = sum(1 for task in list(self.tasks.values()) if task.state == "running")
        return PoolStatus(
            name=self.plan.name,
            kernel_pid=int(guard.owner_stamp().split(":")[0]),
            kernel_id=self.plan.kernel_id,
            notebook=self.plan.notebook,
            started=self.plan.started,
            generation=self.generation,
            idle_timeout_s=self.plan.idle_timeout_s,
            engines=tuple(engine.status() for engine in list(self.engines.values())),
            queued=len(self.tasks) - running,
            running=running,
        )

    @property
    def socket(self) -> Path:
        """The unix socket that this owner answers on."""
        return self.plan.folder / "owner.sock"

    @property
    def record_path(self) -> Path:
        """The pool's record in the runtime folder."""
        return records.folder() / f"{self.plan.folder.name}.json"

    @property
    def cluster(self) -> PoolCluster:
        """The ipyparallel side; its coroutines run in this owner's loop."""
        return self._cluster

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The owner's event loop."""
        return self._loop

    # --- scheduling --------------------------------------------------------------------

    def _submit(self, task: Task) -> None:
        if self._is_closing:
            self._end(task, "cancelled", reason="the pool was stopped")
            return
        missing = [rank for rank in task.ranks if rank not in self.engines]
        if missing or not any(self._may_work(engine) for engine in self.engines.values()):
            self._end(task, "failed", reason="no engines", message=self._no_engines(missing))
            return
        self.tasks[task.id] = task
        self._queue.add(task)
        self._idle.touch()
        self._schedule()
        if task.is_gang and task.state == "queued":
            self._tell_waiting(task)

    def _may_work(self, engine: EngineRecord) -> bool:
        return engine.state is not EngineState.DEAD

    def _no_engines(self, missing: list[int]) -> str:
        if missing:
            return f"Rank {missing[0]} was asked for, but the pool has ranks {list(self.engines)}."
        return (
            f"The pool {self.plan.name!r} has no engines left: each died {MAX_FAILED_STARTS} times "
            "while it started. `%parpool restart` tries again."
        )

    def _schedule(self) -> None:
        idle = [rank for rank, e in self.engines.items() if e.state is EngineState.IDLE]
        if not idle:
            return
        for task, ranks in self._queue.assign(idle):
            self._dispatch(task, ranks)

    def _dispatch(self, task: Task, ranks: tuple[int, ...]) -> None:
        if task.is_gang and self._is_dirty:
            self.generation += 1  # on all ranks together, before any new default group
            self._is_dirty = False
        task.state = "running"
        task.started_s = time.monotonic()
        task.running_on = set(ranks)
        task.info["started"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        header = {
            **task.header,
            "op": "run",
            "task": task.id,
            "gang": list(ranks) if task.is_gang else None,
            "generation": self.generation,
            "world_size": len(self.engines),
        }
        for rank in ranks:
            engine = self.engines[rank]
            engine.take(task)
            frames = task.frames[rank] if isinstance(task.frames, dict) else task.frames
            follow = task.info.get("follow", {}).get(rank)
            self._send(engine, {**header, "follow": follow} if follow else header, frames)
        if not task.retries:
            task.frames = []  # packed arguments must not live as long as the task
        if task.timeout_s is not None:
            self._loop.call_later(task.timeout_s, self._on_timeout, task)

    def _tell_waiting(self, gang: Task) -> None:
        busy = []
        for rank in gang.ranks:
            engine = self.engines[rank]
            if engine.task is not None:
                busy.append([rank, engine.task.name, time.monotonic() - engine.task.started_s])
            elif engine.state is not EngineState.IDLE:
                busy.append([rank, f"its engine is {engine.state}", 0.0])
        idle = [rank for rank, e in self.engines.items() if e.state is EngineState.IDLE]
        self._notify({"op": "waiting", "task": gang.id, "busy": busy, "idle": idle})

    def _cancel(self, task_id: str) -> None:
        task = self.tasks.get(task_id)
        if task is None:
            return
        was_running = task.state == "running"
        self._end(task, "cancelled", reason="cancelled")
        if was_running:
            self._escalation.begin(task_id, task)
        else:
            self._queue.remove(task)
            self._schedule()

    def _on_timeout(self, task: Task) -> None:
        if self.tasks.get(task.id) is task and task.state == "running":
            self._end(
                task, "failed", reason="timeout",
                message=f"The task {task.name!r} ran longer than its time-out of "
                f"{task.timeout_s:g} s and was ended.",
            )
            self._escalation.begin(task.id, task)

    def _end(self, task: Task, state: str, **details: Any) -> None:
        """Make a task's end known; its ranks may be busy for a moment longer."""
        if task.info.get("ended"):
            return
        task.info["ended"] = True
        task.state = state
        self.tasks.pop(task.id, None)
        self._idle.touch()
        header = {"op": "ended", "task": task.id, "state": state, **details}
        self.journal.ended(task, header)
        self._notify(header)

    # --- engines -----------------------------------------------------------------------

    def _on_router(self) -> None:
        while True:
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except zmq.ZMQError:
                return  # closed under us
            identity = parts[0].bytes
            with contextlib.suppress(ValueError):
                self._on_message(identity, *decode([part.buffer for part in parts[1:]]))

    def _on_message(self, identity: bytes, header: Header, frames: list[Frame]) -> None:
        engine = self._engine_named(identity.decode(errors="replace").partition(":")[2])
        if engine is None:
            return  # an engine that was replaced, or a stranger
        if header.get("op") == "hello":
            if hmac.compare_digest(str(header.get("token")), self._token):
                self._known.add(identity)
                self._on_hello(engine)
            return
        if identity not in self._known:
            return
        if header["op"] == "reply":
            self._on_reply(header, frames)
        elif header["op"] == "done":
            self._on_done(engine, header, frames)
        else:
            self._on_event(engine, header, frames)

    def _engine_named(self, name: str) -> EngineRecord | None:
        rank = name.partition(".")[0]
        engine = self.engines.get(int(rank)) if rank.isdigit() else None
        return engine if engine is not None and engine.name == name else None

    def _on_hello(self, engine: EngineRecord) -> None:
        both = {f"{channel}:{engine.name}".encode() for channel in ("work", "control")}
        if both <= self._known:
            engine.hello.set()

    def _on_event(self, engine: EngineRecord, header: Header, frames: list[Frame]) -> None:
        header["rank"] = engine.rank
        task = self.tasks.get(header.get("task", ""))
        if task is not None:
            self.journal.observe(task, header)
        self._notify(header, frames)

    def _on_done(self, engine: EngineRecord, header: Header, frames: list[Frame]) -> None:
        task = engine.task
        if task is None or task.id != header["task"]:
            return
        engine.release()
        header["rank"] = engine.rank
        self._judge_group(task, header.get("group", {}))
        self._rank_done(task, engine.rank, header, frames)

    def _judge_group(self, task: Task, health: dict[str, Any]) -> None:
        """Note whether the ranks may go on with the process group that they have."""
        sequences = task.info.setdefault("sequences", set())
        if health.get("used"):
            sequences.add(health.get("sequence"))
        self._is_dirty |= not health.get("usable", True) or len(sequences) > 1

    def _rank_done(self, task: Task, rank: int, header: Header, frames: list[Frame]) -> None:
        task.running_on.discard(rank)
        if not task.is_gang:
            self.journal.result(task, header, frames)
        self._notify(header, frames)
        is_first = header["status"] in ("error", "died") and "first" not in task.info
        if is_first:
            task.info["first"] = rank
            if task.running_on:
                self._escalation.begin(task.id, task)  # one failing rank frees the others
        if not task.running_on:
            failed = "first" in task.info
            self._end(task, "failed" if failed else "finished", first=task.info.get("first"))
        self._schedule()

    def _on_death(self, engine: EngineRecord) -> None:
        process = engine.process
        if process is None:
            return
        self._loop.remove_reader(process.pidfd)
        code = self._cluster.exit_code(process)
        was_starting = not engine.hello.is_set()
        engine.state = EngineState.DEAD
        engine.process = None
        self._known -= {f"{channel}:{engine.name}".encode() for channel in ("work", "control")}
        message = self._death_message(engine, process.pid, code, was_starting)
        process.close()
        if self._is_closing:
            return
        self._is_dirty = True
        self._fail_rpcs(message, engine.rank)
        task, engine.task = engine.task, None
        engine.doom = message
        engine.hello.set()
        engine.free.set()
        self._notify(
            {"op": "engine_died", "rank": engine.rank, "message": message, "exit_code": code}
        )
        if task is not None:
            self._task_lost(task, engine, message, code)
        if self._ready.done():
            self._spawn(self._replace(engine, was_starting))

    def _death_message(
        self, engine: EngineRecord, pid: int, code: int | None, was_starting: bool  # noqa: FBT001 - a private helper
    ) -> str:
        if engine.doom is not None:
            message, engine.doom = engine.doom, None
            return message
        engine.sample_memory()
        when = " while it started" if was_starting else ""
        what = f" while it ran {engine.task.name!r}" if engine.task is not None else when
        lines = [f"The engine of rank {engine.rank} ({engine.plan.device}, process {pid}) "
                 f"{describe_exit(code)}{what}."]
        if engine.rss_bytes is not None:
            lines.append(f"Its memory was {engine.rss_bytes / 2**20:,.0f} MiB at the last look.")
        kills = oom_kills()
        if code == -9 and kills:
            lines.append(f"The system has ended {kills} processes here for lack of memory so far.")
        words = engine.last_words(self._cluster.output_of(engine.rank))
        if words:
            lines.append("Its last lines:\n" + words)
        return " ".join(lines)

    def _task_lost(self, task: Task, engine: EngineRecord, message: str, code: int | None) -> None:
        if task.retries > 0 and not task.is_gang and self.tasks.get(task.id) is task:
            task.retries -= 1
            task.state = "queued"
            task.running_on.clear()
            self._queue.add(task)
            self._notify({"op": "retry", "task": task.id, "rank": engine.rank, "message": message})
            return
        header = {"op": "done", "task": task.id, "rank": engine.rank, "status": "died",
                  "message": message, "exit_code": code}
        self._rank_done(task, engine.rank, header, [])

    async def _replace(self, engine: EngineRecord, was_starting: bool) -> None:  # noqa: FBT001 - a private helper
        """Start a new engine on the same rank and device."""
        engine.failed_starts = engine.failed_starts + 1 if was_starting else 0
        if engine.failed_starts >= MAX_FAILED_STARTS:
            self._fail_what_cannot_run()
            return
        engine.starts += 1
        engine.doom = None
        try:
            await self._cluster.ensure_controller()
            await self._start_engine(engine)
        except PoolStartError as error:
            self._notify({"op": "engine_died", "rank": engine.rank, "message": str(error)})
            if engine.process is not None:  # it hangs; its death leads back here
                engine.doom = str(error)
                engine.hello.clear()
                engine.process.kill()
            return
        self._save_record()
        self._notify({"op": "engine_replaced", "rank": engine.rank})
        self._schedule()

    def _fail_what_cannot_run(self) -> None:
        alive = {rank for rank, e in self.engines.items() if self._may_work(e)}
        for task in list(self._queue):
            if (task.ranks and not alive.issuperset(task.ranks)) or not alive:
                self._queue.remove(task)
                self._end(task, "failed", reason="no engines", message=self._no_engines([]))

    def replace(self, engine: EngineRecord, why: str) -> None:
        """Kill an engine; its death leads to a new one on the same rank."""
        if engine.process is not None:
            engine.doom = why
            engine.process.kill()

    def _restart(self, ranks: list[int]) -> None:
        for rank in ranks or list(self.engines):
            engine = self.engines[rank]
            engine.failed_starts = 0
            if engine.process is None:
                self._spawn(self._replace(engine, was_starting=False))
            else:
                self.replace(engine, f"The engine of rank {rank} was restarted on request.")

    # --- messages ----------------------------------------------------------------------

    def _send(self, engine: EngineRecord, header: Header, frames: Sequence[Frame]) -> None:
        self._send_to(f"work:{engine.name}", header, frames)

    def _send_control(self, engine: EngineRecord, header: Header, frames: Sequence[Frame]) -> None:
        self._send_to(f"control:{engine.name}", header, frames)

    def _send_to(self, identity: str, header: Header, frames: Sequence[Frame]) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is gone: its death is noticed on the pidfd
            self._router.send_multipart([identity.encode(), *encode(header, frames)], copy=False)
        if self._router.events & zmq.POLLIN:
            # zmq's descriptor tells of new messages once: sending may have used that up.
            self._loop.call_soon(self._on_router)

    def _to_ranks_of(self, task_id: str, operation: str) -> None:
        task = self.tasks.get(task_id)
        for rank in sorted(task.running_on) if task is not None else ():
            self._send_control(self.engines[rank], {"op": operation, "task": task_id}, [])

    def _rpc(
        self,
        future: Future[tuple[Any, list[Frame]]],
        rank: int,
        name: str,
        frames: list[Frame],
        args: dict[str, Any],
    ) -> None:
        engine = self.engines.get(rank)
        if engine is None or not engine.is_alive:
            state = "not in the pool" if engine is None else engine.state
            future.set_exception(OwnerError(f"Rank {rank} cannot answer: it is {state}."))
            return
        number = next(_numbers)
        self._rpcs[number] = future
        future.mgpu_rank = rank  # type: ignore[attr-defined] # to fail it when the rank dies
        self._send_control(engine, {"op": "rpc", "id": number, "name": name, "args": args}, frames)

    def _on_reply(self, header: Header, frames: list[Frame]) -> None:
        future = self._rpcs.pop(header["id"], None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if "failure" in header:
            record = header["failure"]
            future.set_exception(OwnerError(f"{record['ename']}: {record['evalue']}"))
        else:
            future.set_result((header.get("value"), frames))

    def _fail_rpcs(self, message: str, rank: int | None = None) -> None:
        for number, future in list(self._rpcs.items()):
            if rank is None or getattr(future, "mgpu_rank", None) == rank:
                self._rpcs.pop(number)
                if future.set_running_or_notify_cancel():
                    future.set_exception(OwnerError(message))

    def notify(self, header: Header) -> None:
        """Tell the client something."""
        self._notify(header)

    def _notify(self, header: Header, frames: list[Frame] | None = None) -> None:
        self._listener(header, frames or [])

    def spawn(self, job: Any) -> asyncio.Task[Any]:
        """Run a coroutine in the owner's loop until the pool ends."""
        return self._spawn(job)

    def _spawn(self, job: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(job)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def send_control(self, engine: EngineRecord, header: Header) -> None:
        """Send on an engine's control channel, from the owner's own parts."""
        self._send_control(engine, header, [])

    # --- records and clocks ------------------------------------------------------------

    def _save_record(self) -> None:
        stamp = guard.owner_stamp().split(":")
        records.write(
            self.record_path,
            {
                "name": self.plan.name,
                "pid": int(stamp[0]),
                "start_time": stamp[1],
                "socket": str(self.socket),
                "kernel_id": self.plan.kernel_id,
                "notebook": self.plan.notebook,
                "started": self.plan.started,
                "engines": [
                    {
                        "rank": engine.rank,
                        "pid": engine.process.pid,
                        "start_time": guard.start_time(engine.process.pid),
                        "device": engine.plan.device,
                    }
                    for engine in self.engines.values()
                    if engine.process is not None
                ],
            },
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for engine in self.engines.values():
                engine.sample_memory()
            for task in list(self._queue):
                if task.is_gang:
                    self._tell_waiting(task)
            await self._idle.check()

    def _operations(self) -> dict[str, endpoint.Operation]:
        return {
            "status": lambda: self.status().to_dict(),
            "tasks": lambda: [self.journal.describe(task) for task in self.tasks.values()],
            "interrupt": lambda task, force=False: self.interrupt(task, force=force),
            "cancel": self.cancel,
            "request_stop": self.request_stop,
            "restart": lambda ranks=(): self.restart(ranks),
            "stop": lambda: self.stop(reason="stopped from outside"),
            "log": self._log_tail,
        }

    def _log_tail(self, rank: int, size: int = 65536) -> str:
        return read_tail(self.engines[rank].log, size)


def _count() -> Any:
    number = 0
    while True:
        number += 1
        yield number


_numbers = _count()
