"""Which task goes to which rank next. Pure data: no I/O."""

import heapq
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.wire import Frame, Header


@dataclass(slots=True, eq=False)
class Task:
    """One call or cell, as the owner sees it.

    Attributes:
        id: Unique in the pool.
        name: What people call it.
        ranks: A gang's ranks; those of which one must run another task; empty for any rank.
        is_gang: Needs all its ranks at the same time.
        header: What the engines get with it.
        frames: The packed call; for a gang by rank.
        running_on: The ranks that it was sent to and that have not ended.
        begun: The ranks of a gang that have begun to run the user's code.
        since_s: When it was submitted, or the loop that it is a part of.
    """

    id: str
    name: str
    header: Header
    frames: list[Frame] | dict[int, list[Frame]]
    ranks: tuple[int, ...] = ()
    is_gang: bool = False
    priority: int = 0
    timeout_s: float | None = None
    retries: int = 0
    state: str = "queued"
    running_on: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    since_s: float = field(default_factory=time.monotonic)
    started_s: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)


_Heap = list[tuple[int, float, int, Task]]


class TaskQueue:
    """Tasks by priority and age, and gangs in the order they came.

    A waiting gang is next on each of its ranks: nothing new starts there. After it, one queued
    task per rank goes before the next gang. The parts of a loop have the loop's age, so that what
    is submitted while it runs does not hold it up.
    """

    def __init__(self) -> None:
        self._heap: _Heap = []
        self._pinned: dict[tuple[int, ...], _Heap] = {}
        self._gangs: list[Task] = []
        self._owed: set[int] = set()  # ranks where a task goes before the next gang
        self._order = itertools.count()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Task]:
        """Yield every waiting task: gangs first, then by priority and age."""
        yield from self._gangs
        entries = [*self._heap, *itertools.chain.from_iterable(self._pinned.values())]
        yield from (task for *_, task in sorted(entries) if task.state == "queued")

    def add(self, task: Task) -> None:
        """Append a task."""
        if task.is_gang:
            self._gangs.append(task)
            return
        heap = self._pinned.setdefault(task.ranks, []) if task.ranks else self._heap
        heapq.heappush(heap, (-task.priority, task.since_s, next(self._order), task))

    def remove(self, task: Task) -> None:
        """Take a waiting task out; its `state` must have been changed."""
        if task.is_gang and task in self._gangs:
            self._gangs.remove(task)

    def assign(self, idle: Iterable[int]) -> list[tuple[Task, tuple[int, ...]]]:
        """Choose what starts now on the idle ranks, and take it out of the queue."""
        free = set(idle)
        chosen: list[tuple[Task, tuple[int, ...]]] = []
        reserved: set[int] = set()
        for gang in list(self._gangs):
            owed = {rank for rank in gang.ranks if rank in self._owed and self._has_task(rank)}
            if not owed and free.issuperset(gang.ranks) and reserved.isdisjoint(gang.ranks):
                self._gangs.remove(gang)
                self._owed.update(gang.ranks)
                free.difference_update(gang.ranks)
                chosen.append((gang, gang.ranks))
            else:
                reserved.update(set(gang.ranks) - owed)
        for rank in sorted(free - reserved):
            task = self._pop(rank)
            if task is not None:
                self._owed.discard(rank)
                chosen.append((task, (rank,)))
        return chosen

    def _has_task(self, rank: int) -> bool:
        return bool(self._heaps(rank))

    def _pop(self, rank: int) -> Task | None:
        heaps = self._heaps(rank)
        return heapq.heappop(min(heaps, key=lambda heap: heap[0]))[-1] if heaps else None

    def _heaps(self, rank: int) -> list[_Heap]:
        """Return the heaps that hold something for a rank; cancelled tasks fall out here."""
        for ranks, heap in list(self._pinned.items()):
            if not self._drop_cancelled(heap):
                del self._pinned[ranks]
        pinned = [heap for ranks, heap in self._pinned.items() if rank in ranks]
        return [*pinned, self._heap] if self._drop_cancelled(self._heap) else pinned

    @staticmethod
    def _drop_cancelled(heap: _Heap) -> bool:
        while heap and heap[0][-1].state != "queued":
            heapq.heappop(heap)
        return bool(heap)
