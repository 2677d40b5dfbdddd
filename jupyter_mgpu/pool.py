"""The pool as users hold it: starts engines, takes tasks, hands out futures.

The path of a task: `submit` packs the call -> owner -> an engine -> owner -> the inbox's thread
unpacks the result -> the future is done.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Self, Unpack

from jupyter_mgpu import exchange
from jupyter_mgpu.activity import Activity
from jupyter_mgpu.client import (
    EndedTask,
    EngineValues,
    Inbox,
    Listeners,
    PoolEvents,
    PoolExecutor,
    Submission,
    TaskChoices,
    TaskFutures,
)
from jupyter_mgpu.composite import Composite
from jupyter_mgpu.engines import EngineState, PoolStatus
from jupyter_mgpu.errors import MgpuError, PoolClosedError
from jupyter_mgpu.futures import TaskFuture, cancel_all, wait
from jupyter_mgpu.gpus import Request
from jupyter_mgpu.keeping import KeptOwner
from jupyter_mgpu.leases import Claim
from jupyter_mgpu.output.pool_status import engine_rows, status_line
from jupyter_mgpu.output.table import text_table
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.owner.pool_owner import Listener, PoolOwner
from jupyter_mgpu.sending import Sender

LEASE_END_S = 1.0
DETACH_S = 5.0


class Pool:
    """Engines that start together, one GPU each, and take tasks until they are shut down.

    Use `parpool()` to start one.

    Args:
        make_owner: Makes the pool's owner, which tells its events to what it is given.
        request: What was asked for, to compare with a later request.
        claims: The GPUs of each rank, kept from other pools.
        sender: What knows the kernel's names and those on the engines.
        say: Called with each sentence that the user should read, such as a loss of names.
        on_end: Called with the pool when it has ended.
        first_number: Where the numbers of its tasks begin.
    """

    def __init__(
        self,
        make_owner: Callable[[Listener], PoolOwner],
        *,
        request: Request,
        claims: Mapping[int, Claim],
        sender: Sender,
        say: Callable[[str], None],
        on_end: Callable[["Pool"], None],
        first_number: int = 1,
    ) -> None:
        self.request = request
        self._claims = dict(claims)
        self.sender = sender
        self._on_end = on_end
        self._ended: str | None = None
        self._lock = threading.Lock()
        self.owner = make_owner(lambda header, frames: self._inbox.take(header, frames))
        self._futures = TaskFutures(self.owner)
        gangs = Listeners()
        events = PoolEvents(self.owner, sender, say, self._end_soon)
        self._activity = Activity(lambda: bool(self._futures or gangs))
        self.line = exchange.Line(self.owner.answer, self.owner.post_to_all, self.owner.store.place)
        self.submission = Submission(
            self.owner,
            self._futures,
            gangs,
            self._activity,
            self._check_open,
            self.line,
            first_number,
        )
        self.values = EngineValues(self.owner, self.submission, sender, self.line)
        self._inbox = Inbox(
            self._futures, gangs, events, say, self.line, self.submission.task_ended
        )

    def restore(
        self, tasks: Sequence[Mapping[str, Any]], ended: Sequence[Mapping[str, Any]]
    ) -> None:
        """Take over the tasks of a kept pool's earlier kernels; call it before `start`.

        Args:
            tasks: What is queued or runs, as the keeper describes it.
            ended: The last that ended, oldest first.
        """
        self._futures.restore(tasks, ended)
        self.submission.know_names((told["part"] or told)["name"] for told in [*tasks, *ended])
        self._activity.wake()

    def start(self) -> Self:
        """Start the engines and wait until they are ready.

        Raises:
            PoolStartError: If an engine does not come up; nothing of the pool is left then.
        """
        try:
            self.owner.start().result()
        except BaseException:
            self._end("its start failed", 10)
            raise
        exchange.attach(self.line)
        return self

    # --- what it is --------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.owner.name

    @property
    def size(self) -> int:
        """How many engines it has."""
        return len(self.owner.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """0 to size - 1."""
        return self.owner.ranks

    @property
    def engines(self) -> tuple[Any, ...]:
        """One record per rank: pid, device, state, task, memory."""
        return self.status().engines

    @property
    def gpu_uuids(self) -> dict[int, tuple[str, ...]]:
        """The GPUs of each rank that has any."""
        return self.owner.gpu_uuids

    @property
    def is_open(self) -> bool:
        """Whether it still takes tasks."""
        return self._ended is None

    @property
    def end_reason(self) -> str | None:
        """Why it has ended, None while it is open."""
        return self._ended

    def status(self) -> PoolStatus:
        """Return what the pool is and does now."""
        return self.owner.status()

    def idle_first(self, number: int) -> tuple[int, ...]:
        """Return so many ranks: idle ones as far as there are."""
        engines = sorted(self.engines, key=lambda engine: engine.state is not EngineState.IDLE)
        return tuple(sorted(engine.rank for engine in engines[:number]))

    def device(self, rank: int) -> str:
        """Return what a rank runs on, in words."""
        return self.owner.device(rank)

    @property
    def client(self) -> Any:
        """The pool as ipyparallel's own client, for `%%px` and its views."""
        self._check_open()
        return self.owner.client()

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
        **choices: Unpack[TaskChoices],
    ) -> TaskFuture:
        """Call a function in the background, with all the choices that there are.

        Args:
            fn: What to call.
            args: Its arguments.
            kwargs: Its keyword arguments.
            **choices: See `TaskChoices`.

        Raises:
            PackingError: If the function or an argument cannot be pickled.
            PoolClosedError: If the pool was shut down.
            ValueError: If a number makes no sense.
        """
        return self.submission.call(fn, args, kwargs or {}, **choices)

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
            cancel_all(futures)

    def executor(self, **choices: Unpack[TaskChoices]) -> PoolExecutor:
        """Return the pool as a `concurrent.futures.Executor`, for libraries that take one.

        Its end is not that of the pool.

        Args:
            **choices: How each of its calls is run; see `TaskChoices`.

        Raises:
            PoolClosedError: If the pool was shut down.
            TypeError: If there is no such choice.
        """
        self._check_open()
        unknown = sorted(choices.keys() - TaskChoices.__annotations__.keys())
        if unknown:
            raise TypeError(
                f"executor() was given {', '.join(unknown)}, but it takes: "
                f"{', '.join(TaskChoices.__annotations__)}. Its size is the pool's."
            )
        return PoolExecutor(self.submission, self._futures, lambda: self.size, **choices)

    def tasks(self) -> list[TaskFuture]:
        """Return the futures of queued and running tasks."""
        return self._futures.all()

    def ended_tasks(self) -> list[EndedTask]:
        """Return what is kept of the last tasks that have ended, oldest first."""
        return self._futures.ended()

    def task_rows(self) -> list[dict[str, Any]]:
        """Describe the tasks: running, queued, and the last that ended."""
        return self._futures.rows()

    # --- values on the engines ---------------------------------------------------------

    def __getitem__(self, name: str) -> Composite:
        """Return a live view of a name: one value per rank."""
        self._check_open()
        if not isinstance(name, str):
            raise TypeError(
                f"pool[{name!r}] was asked for, but a pool is indexed by the name of a variable, "
                'and that by the rank: pool["x"][0].'
            )
        return Composite(self.values, name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Give every rank the same value."""
        self.scatter(name, [value] * self.size)

    def __delitem__(self, name: str) -> None:
        """Forget a name on every rank, so that its memory is free."""
        self.values.delete(name)

    def scatter(self, name: str, values: Sequence[Any]) -> None:
        """Give each rank its own value; waits for ranks that are busy.

        Args:
            name: The variable's name.
            values: One per rank.

        Raises:
            ValueError: If there is not one value per rank.
        """
        self._check_open()
        self.values.scatter(name, values)

    # --- life --------------------------------------------------------------------------

    def restart(self, ranks: Sequence[int] = ()) -> None:
        """Replace the engines of some ranks (all by default); their variables are lost.

        Raises:
            ValueError: If the pool has no such rank.
        """
        self._check_open()
        for rank in ranks:
            if rank not in self.ranks:
                raise ValueError(f"Rank {rank} was named, but the pool has ranks {self.ranks}.")
        self.owner.restart(tuple(ranks))

    def grow(
        self,
        plans: Sequence[EnginePlan],
        claims: Mapping[int, Claim],
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """Add engines; ranks keep their variables, WORLD_SIZE and the generation rise.

        Args:
            plans: The engines.
            claims: Their leases on this machine, by rank.
            on_turn: Called in the owner's thread when they are about to start.

        Raises:
            PoolStartError: If one does not come up; the pool is as it was then.
            PoolClosedError: If the pool has ended meanwhile.
        """
        growth = self.owner.grow(plans, on_turn)
        try:
            growth.result()
        except CancelledError:
            self._check_open()
            raise PoolClosedError(f"The pool {self.name!r} was stopped while it grew.") from None
        except BaseException:
            growth.cancel()  # a Stop: the engines that are on their way end again
            raise
        self._claims.update(claims)

    def shrink(self, size: int) -> None:
        """End the engines of the last ranks, with the variables there; they must be idle."""
        leaving = self.ranks[size:]
        self.owner.shrink(size).result()
        for rank in leaving:
            exchange.queues.forget_engine(self.line, rank)
            self.sender.drop_rank(rank)
        self._drop_claims(leaving)

    def _drop_claims(self, ranks: Iterable[int]) -> None:
        """Give the GPUs of some ranks back, whose engines are about to end."""
        deadline_s = time.monotonic() + LEASE_END_S
        for rank in ranks:
            if rank in self._claims:
                self._claims.pop(rank).drop(max(0.0, deadline_s - time.monotonic()))

    def shutdown(self, *, wait_for_tasks: bool = True) -> None:
        """End the pool; harmless when it has ended before.

        Args:
            wait_for_tasks: Let queued and running tasks finish first; else they are cancelled.
        """
        if self._ended is not None:
            return
        if wait_for_tasks:
            wait(self.tasks())
        if exchange.published.needs_cleanup(self.line):
            self.values.clean_up()
        self._end("it was shut down", 8)

    def detach(self) -> None:
        """Let go of a kept pool, which goes on without this kernel.

        Raises:
            MgpuError: If it is not kept: it would end.
        """
        if not isinstance(self.owner, KeptOwner):
            raise MgpuError(
                f"The pool {self.name!r} was started without --keep, so it lives and ends with "
                "this kernel. `%parpool stop` ends it now."
            )
        self.owner.detach()
        self.owner.wait(DETACH_S)
        self._finish(
            "it was detached",
            f"The pool {self.name!r} was detached from this kernel, and its tasks go on. "
            f"`%parpool --attach {self.name}` brings them back.",
        )

    @property
    def is_kept(self) -> bool:
        """Whether it outlives this kernel."""
        return isinstance(self.owner, KeptOwner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown(wait_for_tasks=exception[0] is None)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise PoolClosedError(
                f"The pool {self.name!r} has ended: {self._ended}. Start one with %parpool."
            )

    def _end(self, reason: str, timeout_s: float) -> None:
        try:
            self.owner.stop()
            self.owner.wait(timeout_s)
        finally:  # also at a Stop
            self._finish(reason)

    def _finish(self, reason: str, failure: str | None = None) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = reason
        self._activity.close()
        self._inbox.close(failure)
        exchange.detach(self.line)
        self._drop_claims(list(self._claims))
        self._on_end(self)

    def _end_soon(self, reason: str, is_lost: bool) -> None:  # noqa: FBT001 - a callback
        """Wait for the owner's end elsewhere: it still has events to deliver."""

        def end() -> None:
            self.owner.wait(10)
            self._finish(reason, f"The task was lost: {reason}" if is_lost else None)

        threading.Thread(target=end, daemon=True).start()

    def __repr__(self) -> str:
        if self._ended is not None:
            return f"<Pool {self.name!r}, ended: {self._ended}>"
        return f"{status_line(self.status())}\n{text_table(engine_rows(self.status()))}"
