"""Brings the owner's events to whom they concern, in a thread of their own."""

import queue
import threading
from collections import Counter
from collections.abc import Callable

from jupyter_mgpu import exchange
from jupyter_mgpu.client.listeners import Listeners
from jupyter_mgpu.client.pool_events import PoolEvents
from jupyter_mgpu.client.task_futures import TaskFutures
from jupyter_mgpu.wire import Frame, Header


class Inbox:
    """Takes every event of a pool's owner.

    Args:
        futures: Takes the events of tasks.
        gangs: Takes the events of cells and calls on several ranks.
        pool_events: Takes what concerns the pool itself.
        say: Called with a sentence when an event could not be handled.
        line: The pool's among those of the kernel.
        on_ended: Called with the id of each task that has ended.
    """

    def __init__(
        self,
        futures: TaskFutures,
        gangs: Listeners,
        pool_events: PoolEvents,
        say: Callable[[str], None],
        line: exchange.Line,
        on_ended: Callable[[str], None],
    ) -> None:
        self._line = line
        self._on_ended = on_ended
        self._futures = futures
        self._gangs = gangs
        self._pool_events = pool_events
        self._say = say
        self._events: queue.SimpleQueue[tuple[Header, list[Frame]] | None] = queue.SimpleQueue()
        self._waiting: Counter[str] = Counter()  # so many events of each task are in there
        self._failure: str | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._deliver, name="mgpu-client", daemon=True).start()

    def take(self, header: Header, frames: list[Frame]) -> None:
        """Take an event, in the owner's thread: no code of users may run here.

        What is quick and harmless is done at once, since each switch of threads costs as much
        as a short task; the rest is handed to the delivery thread. The events of one task stay in
        order: a result must not overtake what was printed before it.
        """
        if exchange.take(self._line, header, frames):
            return
        if header["op"] == "ended":
            self._on_ended(header["task"])
        task_id = header.get("task", "")
        with self._lock:
            is_first = task_id not in self._waiting
        if is_first and self._futures.handle_at_once(header, frames):
            return
        with self._lock:
            self._waiting[task_id] += 1
        self._events.put((header, frames))

    def close(self, failure: str | None = None) -> None:
        """End the delivery, after what has come so far.

        Args:
            failure: Why tasks that are still open fail; without it they are cancelled.
        """
        self._failure = failure
        self._events.put(None)

    def _deliver(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._handle(*event)
            except BaseException as error:  # noqa: BLE001 - one bad message must not end the delivery
                self._say(f"A message of the pool could not be handled: {error!r}")
            self._handled(event[0].get("task", ""))
            del event  # while it waits for the next one, a result must not live in here
        self._end_rest()

    def _end_rest(self) -> None:
        """End what has reached the owner in its last moment, if anything: it cannot tell."""
        header: Header = {"op": "ended", "is_last": True}
        header |= {"state": "cancelled", "reason": "the pool has ended"}
        if self._failure is not None:
            header |= {"state": "failed", "reason": "no engines", "message": self._failure}
        for task_id in [*self._gangs.open_ids(), *self._futures.open_ids()]:
            self._handle({**header, "task": task_id}, [])

    def _handled(self, task_id: str) -> None:
        with self._lock:
            self._waiting[task_id] -= 1
            if not self._waiting[task_id]:
                del self._waiting[task_id]

    def _handle(self, header: Header, frames: list[Frame]) -> None:
        if not self._pool_events.handle(header) and not self._gangs.handle(header, frames):
            self._futures.handle(header, frames)
