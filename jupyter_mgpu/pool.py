"""The pool as users hold it: starts engines, takes tasks, hands out futures.

The path of a task: `submit` packs the call -> owner -> an engine -> owner -> the delivery
thread unpacks the result -> the future is done.
"""

import atexit
import contextlib
import itertools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from jupyter_mgpu import packing
from jupyter_mgpu.activity import Activity
from jupyter_mgpu.composite import Composite
from jupyter_mgpu.engines import PoolStatus
from jupyter_mgpu.errors import (
    EngineDiedError,
    MgpuError,
    PoolClosedError,
    SelectionError,
    TaskTimeoutError,
)
from jupyter_mgpu.futures import TaskFuture, wait
from jupyter_mgpu.leases import Claim
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.output import failures, publisher
from jupyter_mgpu.output.pool_status import engine_rows, status_line
from jupyter_mgpu.output.table import text_table
from jupyter_mgpu.output.task_display import TaskDisplay
from jupyter_mgpu.owner.engine_record import EnginePlan
from jupyter_mgpu.owner.owner import Owner, PoolPlan
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.sending import Follow, Sender
from jupyter_mgpu.wire import Frame, Header

OWN_PRIORITY = 1 << 30
SUMMARY_S = 1.0
ENDED_ROWS = 200
LATE_GANGS = 32
"""So many ended cells still get what their threads and widgets send."""
LEASE_END_S = 1.0

GangListener = Callable[[Header, list[Frame]], bool]
"""Takes an event of a gang; True when that was the last one."""

_pools: dict[str, "Pool"] = {}
_current: "Pool | None" = None


class Pool:
    """Engines that start together, one GPU each, and take tasks until they are shut down.

    Use `parpool()` to start one.

    Args:
        plan: What to start.
        namespace: The kernel's user namespace, from which cells take names.
        hidden: Names in it that are the shell's own, with its values.
        say: Called with each sentence that the user should read, such as a loss of names.
    """

    def __init__(
        self,
        plan: PoolPlan,
        namespace: dict[str, Any],
        say: Callable[[str], None],
        hidden: Mapping[str, Any] | None = None,
    ) -> None:
        self._plan = plan
        self._say = say
        self._events: queue.SimpleQueue[tuple[Header, list[Frame]] | None] = queue.SimpleQueue()
        self._futures: dict[str, TaskFuture] = {}
        self._gangs: dict[str, GangListener] = {}
        self._late: dict[str, GangListener] = {}
        self._displays: dict[str, TaskDisplay] = {}
        self._numbers = itertools.count(1)
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()
        self._died: dict[int, str] = {}
        self._ended: str | None = None
        self._ended_rows: deque[dict[str, Any]] = deque(maxlen=ENDED_ROWS)
        self.request: Any = None  # what it was asked for, to compare with a later request
        self.claims: dict[int, Claim] = {}  # the GPUs of each rank, kept from other pools
        self.sender = Sender(namespace, hidden=hidden)
        self.follow = Follow()
        self._activity = Activity(lambda: bool(self._futures or self._gangs))
        self.owner = Owner(plan, self._take)
        self._delivery = threading.Thread(target=self._deliver, name="mgpu-client", daemon=True)
        self._delivery.start()

    def start(self) -> Self:
        """Start the engines and wait until they are ready.

        Raises:
            PoolStartError: If an engine does not come up; nothing of the pool is left then.
        """
        try:
            self.owner.start().result()
        except BaseException:
            self.owner.stop(reason="its start failed")
            self.owner.wait(10)
            self._finish("its start failed")
            raise
        _register(self)
        return self

    # --- what it is --------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The pool's name."""
        return self._plan.name

    @property
    def size(self) -> int:
        """How many engines it has."""
        return len(self.owner.engines)

    @property
    def ranks(self) -> tuple[int, ...]:
        """0 to size - 1."""
        return tuple(self.owner.engines)

    @property
    def engines(self) -> tuple[Any, ...]:
        """One record per rank: pid, device, state, task, memory."""
        return self.status().engines

    @property
    def is_open(self) -> bool:
        """Whether it still takes tasks."""
        return self._ended is None

    def status(self) -> PoolStatus:
        """Return what the pool is and does now."""
        return self.owner.status()

    def device(self, rank: int) -> str:
        """Return what a rank runs on, in words."""
        return self.owner.engines[rank].plan.device

    @property
    def client(self) -> Any:
        """The pool as ipyparallel's own client, for `%%px` and its views."""
        import asyncio

        self._check_open()
        return asyncio.run_coroutine_threadsafe(
            self.owner.cluster.client(), self.owner.loop
        ).result(30)

    # --- tasks -------------------------------------------------------------------------

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture:
        """Call a function in the background on the next free engine.

        Everything it takes is packed now: later changes of the arguments are not seen.

        Returns:
            The task's future.

        Raises:
            PackingError: If the function or an argument cannot be pickled.
            PoolClosedError: If the pool was shut down.
        """
        return self.submit_task(fn, args, kwargs)

    def submit_task(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        retries: int = 0,
        rank: int | None = None,
        is_recorded: bool = True,
    ) -> TaskFuture:
        """Call a function in the background, with all the choices that there are.

        Args:
            fn: What to call.
            args: Its arguments.
            kwargs: Its keyword arguments.
            name: What the task is called; the function's name and a number by default.
            priority: Higher ones start first.
            timeout: Seconds from its start after which the task is ended.
            retries: How often it is run again when its engine dies.
            rank: The rank that must run it; any by default.
            is_recorded: Whether its end is written to disk.

        Raises:
            PackingError: If the function or an argument cannot be pickled.
            PoolClosedError: If the pool was shut down.
            ValueError: If a number makes no sense.
        """
        self._check_open()
        _check_choices(timeout, retries)
        frames = pack_call(fn, args, kwargs or {})
        created = datetime.now(UTC)
        task_id = f"t{next(self._numbers)}"
        future = TaskFuture(task_id, name or self._name_for(fn), self, created)
        task = Task(
            id=task_id,
            name=future.name,
            header={"kind": "call", "recorded": is_recorded},
            frames=frames,
            ranks=() if rank is None else (rank,),
            priority=priority,
            timeout_s=timeout,
            retries=retries,
            info={"created": created.isoformat(timespec="milliseconds")},
        )
        self.add_follow(task)
        self._futures[task_id] = future
        self._send(task, lambda: self._futures.pop(task_id, None))
        self._activity.wake()
        return future

    def _name_for(self, fn: Callable[..., Any]) -> str:
        base = getattr(fn, "__name__", type(fn).__name__)
        with self._lock:
            number = self._names[base] = self._names.get(base, 0) + 1
        return f"{base}-{number}"

    def add_follow(self, task: Task) -> None:
        """Let the engines follow the kernel's working folder, paths and environment."""
        state = self.follow.state()
        if state is not None:
            task.header["follow"] = state

    def _send(self, task: Task, undo: Callable[[], Any]) -> None:
        try:
            self.owner.submit(task)
        except PoolClosedError:
            undo()
            raise

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None
    ) -> list[Any]:
        """Call a function once per item and wait for the results, in the items' order.

        A Stop ends the calls that still wait or run.

        Raises:
            BaseException: What the first failing call raised; the others are cancelled.
        """
        futures = [self.submit(fn, *items) for items in zip(*iterables, strict=False)]
        try:
            return [future.result(timeout) for future in futures]
        finally:
            for future in futures:
                if not future.done():
                    future.cancel()

    def submit_gang(self, task: Task, listener: GangListener) -> None:
        """Queue a cell or call that needs several ranks at the same time."""
        self._check_open()
        self._gangs[task.id] = listener
        self._send(task, lambda: self._gangs.pop(task.id, None))
        self._activity.wake()

    def next_id(self, kind: str) -> str:
        """Return an id that no other task of this pool has."""
        return f"{kind}{next(self._numbers)}"

    def pending(self) -> list[str]:
        """Return the names of the user's queued and running tasks."""
        return [future.name for future in self._futures.values()]

    def task_rows(self) -> list[dict[str, Any]]:
        """Describe the tasks: running, queued, and the last that ended."""
        now = [_row(future) for future in self.tasks()]
        return [*now, *reversed(self._ended_rows)]

    def tasks(self) -> list[TaskFuture]:
        """Return the futures of queued and running tasks."""
        return list(self._futures.values())

    def cancel_task(self, task_id: str) -> None:
        """End a task; see `TaskFuture.cancel`."""
        future = self._futures.pop(task_id, None)
        if future is not None:
            self._remember(future)
        with contextlib.suppress(PoolClosedError):
            self.owner.cancel(task_id)

    def request_stop(self, task_id: str) -> None:
        """Ask a task to end by itself; see `TaskFuture.request_stop`."""
        with contextlib.suppress(PoolClosedError):
            self.owner.request_stop(task_id)

    def show_task(self, future: TaskFuture) -> None:
        """Stream a task's diary into the current cell; see `TaskFuture.show`."""
        log = self.owner.engines[future.rank].log if future.rank is not None else None
        display = TaskDisplay(future, publisher.capture(), str(log) if log else None)
        self._displays[future.id] = display
        try:
            display.wait()
        finally:
            self._displays.pop(future.id, None)

    # --- values on the engines ---------------------------------------------------------

    def __getitem__(self, name: str) -> Composite:
        """Return a live view of a name: one value per rank."""
        self._check_open()
        return Composite(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Give every rank the same value."""
        self.scatter(name, [value] * self.size)

    def __delitem__(self, name: str) -> None:
        """Forget a name on every rank, so that its memory is free."""
        self._on_each(context.delete_value, [(name,)] * self.size, f"delete {name}")
        self.sender.forget_name(name)

    def scatter(self, name: str, values: Sequence[Any]) -> None:
        """Give each rank its own value; waits for ranks that are busy.

        Args:
            name: The variable's name.
            values: One per rank.

        Raises:
            ValueError: If there is not one value per rank.
        """
        self._check_open()
        if not name.isidentifier():
            raise ValueError(f"{name!r} was given, but a variable's name must be an identifier.")
        if len(values) != self.size:
            raise ValueError(
                f"{len(values)} values were given, but the pool has {self.size} ranks. "
                "Give one value per rank."
            )
        arguments = [(name, value) for value in values]
        self._on_each(context.assign_value, arguments, f"assign {name}")
        self.sender.assigned_on_engines(name, self.ranks)

    def _on_each(
        self, fn: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str
    ) -> None:
        """Call a function once on every rank, each with its own arguments, and wait."""
        calls = [
            self._own_task(fn, args, rank, name)
            for rank, args in zip(self.ranks, arguments, strict=True)
        ]
        for call in calls:
            call.result()

    def _own_task(
        self, fn: Callable[..., Any], args: tuple[Any, ...], rank: int, name: str
    ) -> TaskFuture:
        """Submit a call of ours: it goes before the user's tasks and is not recorded."""
        return self.submit_task(
            fn, args, name=name, rank=rank, priority=OWN_PRIORITY, is_recorded=False
        )

    def fetch(self, rank: int, name: str) -> Any:
        """Wait for a rank and return one of its values.

        Raises:
            KeyError: If that rank has no such value.
        """
        return self._own_task(context.read_value, (name,), rank, f"fetch {name}").result()

    def summarize(self, rank: int, name: str) -> dict[str, Any] | str | None:
        """Say what a value is, at once: facts, None where there is none, or why not."""
        try:
            value = self.owner.rpc(rank, "summary", names=[name]).result(SUMMARY_S)
        except TimeoutError:
            return f"no answer within {SUMMARY_S:g} s"
        except MgpuError as error:
            return str(error)
        return value.get(name)  # type: ignore[no-any-return]

    def release(self, name: str, ranks: Sequence[int]) -> None:
        """Free what some ranks keep for a composite; does not wait."""
        for rank in ranks:
            with contextlib.suppress(MgpuError):
                self.owner.rpc(rank, "release", name=name)

    def ask(self, rank: int, question: str, **args: Any) -> Any:
        """Ask an engine something on its control channel, also while it is busy.

        Raises:
            TimeoutError: If it does not answer within 5 s.
            OwnerError: If the engine is gone or refuses.
        """
        return self.owner.rpc(rank, question, **args).result(5)

    # --- life --------------------------------------------------------------------------

    def restart(self, ranks: Sequence[int] = ()) -> None:
        """Replace the engines of some ranks (all by default); their variables are lost.

        Raises:
            ValueError: If the pool has no such rank.
        """
        self._check_open()
        for rank in ranks:
            if rank not in self.owner.engines:
                raise ValueError(f"Rank {rank} was named, but the pool has ranks {self.ranks}.")
        self.owner.restart(tuple(ranks))

    def grow(self, plans: Sequence[EnginePlan]) -> None:
        """Add engines; ranks keep their variables, WORLD_SIZE and the generation rise.

        Raises:
            PoolStartError: If one does not come up; the pool is as it was then.
        """
        growth = self.owner.grow(plans)
        try:
            growth.result()
        except BaseException:
            growth.cancel()  # a Stop: the engines that are on their way end again
            raise

    def shrink(self, size: int) -> None:
        """End the engines of the last ranks.

        Raises:
            SelectionError: If tasks or variables would be lost; it names them.
        """
        leaving = self.ranks[size:]
        losses = self.losses(leaving)
        if losses:
            raise SelectionError(
                f"A pool of {size} was asked for, but that would lose what is there: "
                f"{'; '.join(losses)}. Add --restart to lose it."
            )
        self.owner.shrink(size).result()
        self._drop_claims(leaving)

    def losses(self, ranks: Iterable[int]) -> list[str]:
        """Say what would be lost with the engines of some ranks: tasks and variables."""
        losses = []
        for rank in ranks:
            task = self.owner.engines[rank].task
            names = sorted(self.sender.names_on(rank))
            if task is not None:
                losses.append(f"rank {rank} runs {task.name!r}")
            if names:
                losses.append(f"rank {rank} has {', '.join(names[:8])}")
        return losses

    def _drop_claims(self, ranks: Iterable[int]) -> None:
        """Give the GPUs of some ranks back, whose engines are about to end."""
        deadline_s = time.monotonic() + LEASE_END_S
        for rank in ranks:
            if rank in self.claims:
                self.claims.pop(rank).drop(max(0.0, deadline_s - time.monotonic()))

    def shutdown(self, *, wait_for_tasks: bool = True) -> None:
        """End the pool; harmless when it has ended before.

        Args:
            wait_for_tasks: Let queued and running tasks finish first; else they are cancelled.
        """
        if self._ended is not None:
            return
        if wait_for_tasks:
            wait(self.tasks())
        self.owner.stop()
        self.owner.wait(8)
        self._finish("it was shut down")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown(wait_for_tasks=exception[0] is None)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise PoolClosedError(
                f"The pool {self.name!r} has ended: {self._ended}. Start one with %parpool."
            )

    def _finish(self, reason: str) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = reason
        self._activity.close()
        self._events.put(None)
        self._drop_claims(list(self.claims))
        _unregister(self)

    def __repr__(self) -> str:
        if self._ended is not None:
            return f"<Pool {self.name!r}, ended: {self._ended}>"
        return f"{status_line(self.status())}\n{text_table(engine_rows(self.status()))}"

    # --- owner's thread ----------------------------------------------------------------

    def _take(self, header: Header, frames: list[Frame]) -> None:
        """Take an event of the owner, in its thread: no code of users may run here.

        What is quick and harmless is done at once, since each switch of threads costs as much
        as a short task; the rest is handed to the delivery thread.
        """
        future = self._futures.get(header.get("task", ""))
        if future is not None and future.id not in self._displays:
            if header["op"] == "started":
                self._on_task_event(future, header, frames)
                return
            if header["op"] == "done" and header["status"] == "ok":
                with contextlib.suppress(packing.NotPlainError):
                    self._settle_ok(future, packing.unpack_plain(frames))
                    return
            if header["op"] == "ended" and future.done():
                self._on_ended(future, header)
                return
        self._events.put((header, frames))

    # --- delivery thread ---------------------------------------------------------------

    def _deliver(self) -> None:
        while (event := self._events.get()) is not None:
            header, frames = event
            try:
                self._on_event(header, frames)
            except Exception as error:  # noqa: BLE001 - one bad message must not end the delivery
                self._say(f"A message of the pool could not be handled: {error!r}")

    def _on_event(self, header: Header, frames: list[Frame]) -> None:
        operation = header["op"]
        task_id = header.get("task")
        if operation == "engine_died":
            self._died[header["rank"]] = header["message"]
            self.sender.forget_rank(header["rank"])
        elif operation == "engine_replaced":
            self._on_replaced(header["rank"])
        elif operation == "engine_lost":
            self._say(f"Rank {header['rank']} has no engine: {header['message']}")
        elif operation == "pool_ended":
            self._on_pool_ended(header["reason"])
        elif operation == "notice":
            self._say(header["message"])
        elif operation == "idle_warning":
            self._say(
                f"The pool {self.name!r} ends in {header['seconds'] / 60:.0f} min because nothing "
                "uses it. Any use keeps it; `%parpool --idle 0` keeps it for good."
            )
        elif operation == "unkillable":
            self._say(f"Processes {header['pids']} could not be ended: they hang in the driver.")
        elif task_id in self._gangs:
            if self._gangs[task_id](header, frames):
                self._late[task_id] = self._gangs.pop(task_id)
                while len(self._late) > LATE_GANGS:
                    self._late.pop(next(iter(self._late)))
        elif task_id in self._late:  # a thread that the cell left behind, or a widget of it
            self._late[task_id](header, frames)
        elif task_id in self._futures:
            self._on_task_event(self._futures[task_id], header, frames)

    def _on_task_event(self, future: TaskFuture, header: Header, frames: list[Frame]) -> None:
        operation = header["op"]
        if operation == "started":
            future.rank = header["rank"]
            future.device = self.device(header["rank"])
            future.started = datetime.now(UTC)
            future._is_running = True  # noqa: SLF001 - the future's own side of the pool
        elif operation == "output":
            future._diary.write(header["text"], header.get("dropped", 0))  # noqa: SLF001 - the future's own side of the pool
        elif operation == "report":
            future.metrics.append({"step": header["step"], **header["metrics"]})
        elif operation == "progress":
            future.progress = header["value"]
        elif operation == "retry":
            future._is_running = False  # noqa: SLF001 - the future's own side of the pool
        elif operation == "done":
            self._settle(future, header, frames)
        elif operation == "ended":
            self._on_ended(future, header)
        display = self._displays.get(future.id)
        if display is not None:
            display.handle(header)

    def _settle(self, future: TaskFuture, header: Header, frames: list[Frame]) -> None:
        """Give a future the result or the exception that its engine sent."""
        rank = header["rank"]
        if header["status"] == "ok":
            try:
                result = packing.unpack(frames)
            except BaseException as error:  # noqa: BLE001 - becomes the future's exception
                error.add_note(f"The result of the task {future.name!r} came from rank {rank}.")
                self._set(future, error=error)
            else:
                self._settle_ok(future, result)
        elif header["status"] == "died":
            died = EngineDiedError(header["message"], rank=rank, exit_code=header["exit_code"])
            self._set(future, error=died)
        else:
            self._set(
                future,
                error=failures.rebuild(header["failure"], frames, rank, self.device(rank)),
            )

    def _settle_ok(self, future: TaskFuture, result: Any) -> None:
        future.finished = datetime.now(UTC)
        self._set(future, result=result)

    def _on_ended(self, future: TaskFuture, header: Header) -> None:
        self._futures.pop(future.id, None)
        future.finished = future.finished or datetime.now(UTC)
        if not future.done():
            self._settle_undone(future, header)
        self._remember(future)

    def _remember(self, future: TaskFuture) -> None:
        """Keep a line of an ended task; its result goes with its future."""
        self._ended_rows.append(_row(future))

    def _settle_undone(self, future: TaskFuture, header: Header) -> None:
        """End a future whose task sent no result: it was cancelled, or it never ran."""
        if header.get("reason") == "timeout":
            self._set(future, error=TaskTimeoutError(header["message"]))
        elif header["state"] == "cancelled":
            future.cancel()
        else:
            message = header.get("message") or f"The task {future.name!r} did not run."
            self._set(future, error=MgpuError(message))

    @staticmethod
    def _set(future: TaskFuture, *, result: Any = None, error: BaseException | None = None) -> None:
        with contextlib.suppress(Exception):  # cancelled in this very moment
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _on_replaced(self, rank: int) -> None:
        message = self._died.pop(rank, "")
        lost = self.sender.lost_names(rank)
        tail = f" Lost there: {', '.join(sorted(lost))}." if lost else ""
        self._say(f"{message} A new engine runs on rank {rank} ({self.device(rank)}).{tail}")

    def _on_pool_ended(self, reason: str) -> None:
        if reason == "idle":
            self._say(f"The pool {self.name!r} was ended because nothing used it.")
        if reason != "stopped":
            threading.Thread(target=self._after_end, args=(reason,), daemon=True).start()

    def _after_end(self, reason: str) -> None:
        self.owner.wait(10)
        self._finish(reason)


def _row(future: TaskFuture) -> dict[str, Any]:
    begun, ended = future.started, future.finished or datetime.now(UTC)
    return {
        "name": future.name,
        "state": str(future.state),
        "rank": future.rank,
        "seconds": round((ended - begun).total_seconds(), 1) if begun else None,
        "progress": future.progress,
        "metrics": future.last_metrics,
    }


def pack_call(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Frame]:
    """Pack a call as it is now: later changes of its arguments are not seen.

    Raises:
        PackingError: If a part cannot be pickled; it says which.
    """
    call = (fn, tuple(args), dict(kwargs))
    return packing.pack(call, copy=True, labels=("function", "args", "kwargs"))


def _check_choices(timeout: float | None, retries: int) -> None:
    if timeout is not None and timeout <= 0:
        raise ValueError(f"A time-out of {timeout:g} s was given; it must be above 0, or None.")
    if retries < 0:
        raise ValueError(f"{retries} retries were given; it must be 0 or more.")


def latest_pool() -> Pool | None:
    """Return the open pool that was started last, or None."""
    return _current


def find_pool(name: str) -> Pool | None:
    """Return an open pool of this kernel by name, or None."""
    return _pools.get(name)


def open_pools() -> list[Pool]:
    """Return every open pool of this kernel."""
    return list(_pools.values())


def _register(pool: Pool) -> None:
    global _current
    _pools[pool.name] = pool
    _current = pool


def _unregister(pool: Pool) -> None:
    global _current
    _pools.pop(pool.name, None)
    if _current is pool:
        _current = next(reversed(_pools.values()), None)


def _shutdown_all() -> None:
    for pool in open_pools():
        pool.shutdown(wait_for_tasks=False)


atexit.register(_shutdown_all)


def _after_fork() -> None:
    """Make a forked child forget the pools: they belong to its parent."""
    global _current
    _pools.clear()
    _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def refuse_on_engine(what: str) -> None:
    """Refuse something that only a kernel can do.

    Raises:
        MgpuError: In an engine.
    """
    engine = context.current()
    if engine is not None:
        raise MgpuError(
            f"{what} was called on rank {engine.rank}, but an engine has no pool of its own. "
            "Call it in the notebook."
        )
