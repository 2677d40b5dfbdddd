"""Hands tasks and gangs to the owner: packed now, with what the engines must follow."""

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict, Unpack

from jupyter_mgpu import exchange, packing
from jupyter_mgpu.activity import Activity
from jupyter_mgpu.client.listeners import Listener, Listeners
from jupyter_mgpu.client.task_futures import TaskFutures
from jupyter_mgpu.errors import PoolClosedError
from jupyter_mgpu.exchange import Line
from jupyter_mgpu.futures import Control, TaskFuture
from jupyter_mgpu.owner.pool_owner import PoolOwner
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.packing import Place, companions
from jupyter_mgpu.sending import Follow
from jupyter_mgpu.wire import Frame, Header


class TaskChoices(TypedDict, total=False):
    """How a task is run.

    Attributes:
        name: What the task is called; the function's name and a number by default.
        priority: Higher ones start first; 0 by default.
        timeout: Seconds from its start after which the task is ended; None for never.
        retries: How often it is run again when its engine dies; 0 by default.
        rank: The rank that must run it; any by default.
        ranks: Those of which one must run it; any by default.
        is_recorded: Whether its end is written to disk; True by default.
        part: What it says of the loop that it is a part of.
    """

    name: str | None
    priority: int
    timeout: float | None
    retries: int
    rank: int | None
    ranks: tuple[int, ...]
    is_recorded: bool
    part: Mapping[str, Any]


class Submission:
    """Submits to one pool. Any thread may.

    Args:
        owner: Where tasks go.
        futures: Takes the futures of tasks.
        gangs: Takes the listeners of gangs.
        activity: Woken by each submission.
        check_open: Raises PoolClosedError when the pool has ended.
        line: The pool's among those of the kernel.
        first_number: Where its numbers begin: above those of the pool's earlier kernels.
    """

    def __init__(
        self,
        owner: PoolOwner,
        futures: TaskFutures,
        gangs: Listeners,
        activity: Activity,
        check_open: Callable[[], None],
        line: Line,
        first_number: int = 1,
    ) -> None:
        self._line = line
        self._owner = owner
        self._futures = futures
        self._gangs = gangs
        self._activity = activity
        self._check_open = check_open
        self._follow = Follow()
        self._numbers = itertools.count(first_number)
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()
        self._companions: dict[str, list[Any]] = {}  # of tasks that have not ended

    def call(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        make_future: Callable[[str, str, Control, datetime], TaskFuture] = TaskFuture,
        **choices: Unpack[TaskChoices],
    ) -> TaskFuture:
        """Queue a call.

        Args:
            fn: What to call.
            args: Its arguments.
            kwargs: Its keyword arguments.
            make_future: `TaskFuture`, or what takes the same and returns one.
            **choices: How it is run.

        Raises:
            PackingError: If the function or an argument cannot be pickled.
            PoolClosedError: If the pool has ended.
            ValueError: If a number makes no sense.
        """
        self._check_open()
        rank, timeout_s = choices.get("rank"), choices.get("timeout")
        retries = choices.get("retries", 0)
        _check(timeout_s, retries)
        with companions.collect(self._line) as found:
            frames = pack_call(fn, args, kwargs, self._owner.store.place)
        created = datetime.now(UTC)
        task = Task(
            id=self.next_id("t"),
            name=choices.get("name") or self.name_for(fn),
            header={"kind": "call", "recorded": choices.get("is_recorded", True)},
            frames=frames,
            ranks=choices.get("ranks", ()) if rank is None else (rank,),
            priority=choices.get("priority", 0),
            timeout_s=timeout_s,
            retries=retries,
            info=_info(created),
        )
        future = make_future(task.id, task.name, self._futures, created)
        if "part" in choices:
            task.header["part"] = future.part = choices["part"]
        return self._submit(task, future, found)

    def job(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str
    ) -> TaskFuture:
        """Queue the one call of a kept pool that ends with it: on all ranks at the same time.

        Returns:
            The future of what the first rank returns.

        Raises:
            PackingError: If the function or an argument cannot be pickled.
        """
        created = datetime.now(UTC)
        ranks = self._owner.ranks
        header = {"kind": "call", "recorded": True, "result_rank": ranks[0], "ends_pool": True}
        with companions.collect(self._line) as found:
            frames = pack_call(fn, args, kwargs, self._owner.store.place)
        task = Task(
            id=self.next_id("t"),
            name=name,
            header=header,
            frames=frames,
            ranks=ranks,
            is_gang=len(ranks) > 1,
            info=_info(created),
        )
        return self._submit(
            task, TaskFuture(task.id, name, self._futures, created), found, result_rank=ranks[0]
        )

    def _submit(
        self,
        task: Task,
        future: TaskFuture,
        found: list[Any],
        result_rank: int | None = None,
    ) -> TaskFuture:
        self._add_follow(task)
        if found:
            self._companions[task.id] = found
        self._send(task, lambda: self._futures.add(future, result_rank), self._futures.discard)
        return future

    def new_gang(
        self,
        name: str,
        ranks: tuple[int, ...],
        header: Header,
        frames: list[Frame] | dict[int, list[Frame]],
        timeout_s: float | None,
    ) -> Task:
        """Make a task that needs several ranks at the same time; `gang` queues it."""
        task = Task(
            id=self.next_id("g"),
            name=name,
            header=header,
            frames=frames,
            ranks=ranks,
            is_gang=True,
            timeout_s=timeout_s,
            info=_info(datetime.now(UTC)),
        )
        self._add_follow(task)
        return task

    def gang(self, task: Task, listener: Listener) -> None:
        """Queue a cell or call that needs several ranks at the same time."""
        self._check_open()
        self._send(task, lambda: self._gangs.add(task.id, listener), self._gangs.discard)

    def open_loop(self, future: TaskFuture) -> None:
        """List a loop as one task until `loop_ended`.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        self._check_open()
        self._futures.add(future)

    def loop_ended(self, future: TaskFuture) -> None:
        """List a loop among the tasks that have ended."""
        self._futures.end(future)

    def chunk(self, task: Task, listener: Listener) -> None:
        """Queue a part of a loop."""
        self._add_follow(task)
        self.gang(task, listener)

    def task_ended(self, task_id: str) -> None:
        """Let go of what only a task needed."""
        self._companions.pop(task_id, None)

    def next_id(self, kind: str) -> str:
        """Return an id that nothing else of this pool has."""
        return f"{kind}{self.next_number()}"

    def next_number(self) -> int:
        """Return a number that nothing else of this pool has."""
        return next(self._numbers)

    def name_for(self, fn: Callable[..., Any]) -> str:
        """Return a name for a task that calls a function."""
        base = name_of(fn)
        with self._lock:
            number = self._names[base] = self._names.get(base, 0) + 1
        return f"{base}-{number}"

    def know_names(self, names: Iterable[str]) -> None:
        """Take note of the names of earlier tasks: new ones do not look the same."""
        with self._lock:
            for name in names:
                base, _, number = name.rpartition("-")
                if number.isdecimal():
                    self._names[base] = max(self._names.get(base, 0), int(number))

    def _add_follow(self, task: Task) -> None:
        """Let the engines follow the kernel's working folder, paths, environment and modules."""
        state = self._follow.state()
        if state is not None:
            task.header["follow"] = state
        stamps = exchange.modules.stamps(self._line)
        if stamps:
            task.header["modules"] = stamps

    def _send(self, task: Task, listen: Callable[[], None], undo: Callable[[str], None]) -> None:
        try:
            listen()
            self._owner.submit(task)
            self._activity.wake()
        except PoolClosedError:
            undo(task.id)
            self.task_ended(task.id)
            task.frames.clear()  # the traceback may live long
            raise
        except BaseException:  # a Stop: whoever listens must hear of its end
            self._owner.submit(task)  # harmless if it was
            self._owner.cancel(task.id)
            raise


def name_of(fn: Callable[..., Any]) -> str:
    """Return what people call a function."""
    return getattr(fn, "__name__", type(fn).__name__)


def pack_call(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], place: Place
) -> list[Frame]:
    """Pack a call as it is now: later changes of its arguments are not seen.

    Args:
        fn: What to call.
        args: Its arguments.
        kwargs: Its keyword arguments.
        place: Puts large arguments elsewhere, as `Store.place` does.

    Raises:
        PackingError: If a part cannot be pickled; it says which.
        TypeError: If it cannot be called, as when it was called already.
    """
    if not callable(fn):
        raise TypeError(
            f"A {type(fn).__name__} was given where a function is called. Give the function, and "
            "its arguments behind it: parfeval(fn, x), not parfeval(fn(x))."
        )
    call = (fn, tuple(args), dict(kwargs))
    return packing.pack(call, copy=True, labels=("function", "args", "kwargs"), place=place)


def check_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call that `pack_call` would refuse, before there is anything to run it."""
    pack_call(fn, args, kwargs, lambda _frames, *, copy=False: [])  # noqa: ARG005


def _info(created: datetime) -> dict[str, Any]:
    return {"created": created.isoformat(timespec="milliseconds")}


def _check(timeout: float | None, retries: int) -> None:
    if timeout is not None and timeout <= 0:
        raise ValueError(f"A time-out of {timeout:g} s was given; it must be above 0, or None.")
    if retries < 0:
        raise ValueError(f"{retries} retries were given; it must be 0 or more.")
