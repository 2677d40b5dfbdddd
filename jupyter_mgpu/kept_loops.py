"""Loops that outlive their kernel: divided beforehand, and each part is a task of a kept pool.

parfor(wait=False) -> parts, as tasks in the keeper's queue -> engines
KeptLoop <- futures of parts, in whichever kernel has the pool, and records of those that ended
"""

import math
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypedDict

from jupyter_mgpu import packing
from jupyter_mgpu.errors import MgpuError, PackingError
from jupyter_mgpu.futures import CancelledError, TaskFuture, cancel_all, settle, wait
from jupyter_mgpu.on_engine.loop_parts import Packed, run_part, wrap
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.output import failures, publisher
from jupyter_mgpu.output.task_display import TaskDisplay
from jupyter_mgpu.pool import Pool

PARTS_PER_ENGINE = 16
"""Many, so that the last ones end at about the same time; few enough to be listed."""
LOOK_S = 0.2


class Part(Protocol):
    """A part, as its future or as its record on disk."""

    @property
    def part(self) -> Mapping[str, Any] | None:
        """What it says of its loop."""

    @property
    def rank(self) -> int | None:
        """Where it ran."""

    @property
    def diary(self) -> str:
        """What it has printed."""

    def result(self, timeout: float | None = None) -> Any:
        """Return what its items gave, or raise what has ended it."""


class PartOf(TypedDict):
    """What a part's task says of its loop.

    Attributes:
        loop: Tells loops of one name apart.
        name: The loop's name.
        first: The index of the part's first item.
        size: How many items the part has.
        total: How many items the loop has.
        collects: Whether exceptions stand among the results.
    """

    loop: str
    name: str
    first: int
    size: int
    total: int
    collects: bool


@dataclass(frozen=True, slots=True)
class LoopWish:
    """How a loop is run; see `parfor`."""

    name: str
    total: int
    seed: int | None
    chunk: int | None
    workers: int | None
    collects: bool


class KeptLoop(TaskFuture):
    """The handle of such a loop: its result is the list of all results, in loop order.

    Args:
        part_of: What its parts say of it.
        created: When it was made.
        ends_early: Whether the first error ends the other parts. Not where it is brought back:
            who looks at a loop must not end it.

    Attributes:
        parts: What there is of it: futures, and records of those that ended before.
        companions: What its items need in this kernel until they have run.
    """

    def __init__(self, part_of: Mapping[str, Any], created: datetime, *, ends_early: bool) -> None:
        super().__init__(part_of["loop"], part_of["name"], _Control(self), created)
        self._ends_early = ends_early
        self._error: BaseException | None = None
        self.parts: list[Part] = []
        self.companions: list[Any] = []
        self._total: int = part_of["total"]
        self._collects: bool = part_of["collects"]
        self._values: dict[int, Any] = {}

    @property
    def results(self) -> dict[int, Any]:
        """The results so far, by index; also after a failure or a cancel."""
        return dict(sorted(self._values.copy().items()))

    @property
    def diary(self) -> str:
        """What its parts have printed, in loop order."""
        return "".join(part.diary for part in sorted(self.parts, key=_first))

    @property
    def open_parts(self) -> list[TaskFuture]:
        """Those that wait or run."""
        parts = [part for part in self.parts if isinstance(part, TaskFuture)]
        return [part for part in parts if not part.done()]

    def take(self, part: Part) -> None:
        """Take what a part has given; the first error is the loop's, unless they are collected."""
        first = _first(part)
        try:
            for index, (record, packed) in enumerate(part.result(), start=first):
                if record is None:
                    self._values[index] = packing.unpack(packed)
                else:
                    frames = packed if len(packed[0]) else ()
                    self._values[index] = failures.rebuild(record, frames, part.rank or 0, "")
        except BaseException as error:  # noqa: BLE001 - becomes the loop's
            if isinstance(error, CancelledError) or not self._collects:
                self._error = self._error or error
            else:  # an engine that died: in the place of all that it had
                size = (part.part or {})["size"]
                for index in range(first, first + size):
                    self._values.setdefault(index, error)
        self.progress = len(self._values) / self._total if self._total else None
        if self._error is not None and self._ends_early:
            self._end_with(self._error)

    def _end_with(self, error: BaseException) -> None:
        if self.done():
            return
        error.__dict__["results"] = self.results
        if isinstance(error, CancelledError):
            self._set_cancelled()
        settle(self, error=error)
        cancel_all(self.open_parts)

    def complete(self) -> None:
        """Take note that all parts were taken."""
        lost = self._total - sum((part.part or {})["size"] for part in self.parts)
        if self._error is not None:
            self._end_with(self._error)
        elif lost:
            error = MgpuError(
                f"Of the items of the loop {self.name!r} {lost} of {self._total} are missing in "
                "`results`: its kernel ended before it had sent them, its keeper was killed, or "
                "they are on disk no longer. Run the loop again for these."
            )
            self._end_with(error)
        elif len(self._values) < self._total:  # it was asked to stop
            self._end_with(CancelledError())
        settle(self, result=list(self.results.values()))

    def follow(self, on_end: Callable[[TaskFuture], None]) -> None:
        """Wait for the parts in a thread of its own.

        Args:
            on_end: Called when all have ended.
        """
        futures = [part for part in self.parts if isinstance(part, TaskFuture)]

        def run() -> None:
            left = list(futures)
            while left:
                if self.started is None and any(part.started for part in left):
                    self.started, self._is_running = datetime.now(UTC), True
                wait(left, LOOK_S, return_when="FIRST_COMPLETED")
                for part in filter(TaskFuture.done, left.copy()):
                    left.remove(part)
                    self.take(part)
            self.complete()
            self.companions.clear()
            on_end(self)

        threading.Thread(target=run, name="mgpu-loop", daemon=True).start()


def _first(part: Part) -> int:
    first: int = (part.part or {})["first"]
    return first


class _Control:
    """What a loop's future asks."""

    def __init__(self, loop: KeptLoop) -> None:
        self._loop = loop

    def cancel_task(self, task_id: str) -> None:  # noqa: ARG002 - there is only one
        cancel_all(self._loop.open_parts)

    def request_stop(self, task_id: str, after: StopAfter) -> None:  # noqa: ARG002 - as above
        for part in self._loop.open_parts:
            part.request_stop(after)

    def show_task(self, future: TaskFuture) -> None:
        TaskDisplay(future, publisher.capture(), None).wait()


def start(
    pool: Pool, fn: Callable[..., Any], iterables: Sequence[Iterable[Any]], wish: LoopWish
) -> KeptLoop:
    """Send all items of a loop to a kept pool.

    Raises:
        PackingError: If the function or an item cannot be pickled; nothing runs then.
        PoolClosedError: If the pool has ended.
    """
    submission = pool.submission
    ranks = () if wish.workers is None else pool.idle_first(wish.workers)
    size = wish.chunk or math.ceil(wish.total / (PARTS_PER_ENGINE * (len(ranks) or pool.size))) or 1
    with packing.companions.collect(pool.line) as companions:
        function = wrap(fn)
        items = [_wrap_item(*item) for item in enumerate(zip(*iterables, strict=False))]
    part_of = PartOf(
        loop=f"{submission.next_id('loop')}-{secrets.token_hex(4)}",  # among those on disk as well
        name=wish.name,
        first=0,
        size=len(items),
        total=len(items),
        collects=wish.collects,
    )
    loop = KeptLoop(part_of, datetime.now(UTC), ends_early=True)
    loop.companions = companions
    submission.open_loop(loop)
    try:
        for first in range(0, len(items), size):
            part = items[first : first + size]
            future = submission.call(
                run_part,
                (loop.id, function, first, part, wish.seed),
                {"collects": wish.collects},
                name=f"{wish.name}[{first}:{first + len(part)}]",
                ranks=ranks,
                retries=1,
                part={**part_of, "first": first, "size": len(part)},
            )
            loop.parts.append(future)
    except BaseException:  # a Stop, or the pool's end
        loop.cancel()
        raise
    finally:
        loop.follow(submission.loop_ended)
    return loop


def _wrap_item(index: int, arguments: tuple[Any, ...]) -> Packed:
    try:
        return wrap(arguments)
    except PackingError as error:
        raise PackingError(f"Item {index} of the loop cannot be sent: {error}") from None


def bring_back(parts: Sequence[Part], pool: Pool | None) -> KeptLoop:
    """Return a loop that an earlier kernel has started.

    Args:
        parts: All that there is of it: futures, then records; one that ends just now is in both.
        pool: That of the futures, None if there are none.
    """
    loop = KeptLoop(parts[0].part or {}, datetime.now(UTC), ends_early=False)
    loop.parts += {_first(part): part for part in parts}.values()
    for part in loop.parts:
        if not isinstance(part, TaskFuture):
            loop.take(part)
    if pool is None:
        loop.complete()
    else:
        pool.submission.open_loop(loop)
        loop.follow(pool.submission.loop_ended)
    return loop
