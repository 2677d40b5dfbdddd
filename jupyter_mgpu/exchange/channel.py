"""The state of one queue: packed items, who waits to put or get, what was handed out.

Nothing waits in here: who asks is settled at once or later, by a call that must be quick. Whoever
calls holds the lock of all channels.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jupyter_mgpu.wire import Frame

MOST_ITEMS = 1000
MOST_BYTES = 64 * 2**20
"""An item that is larger than this is let in when the queue is empty."""

OK, FULL, EMPTY, CLOSED, ENDED = "ok", "full", "empty", "closed", "ended"
"""How a request ends; `ended`: the pools that the queue was sent to are gone."""
ORPHANED = "orphaned"
"""The kernel is gone that a request of an engine was for."""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One packed item."""

    frames: Sequence[Frame]
    num_bytes: int


class Waiter:
    """One request to put or to get.

    Args:
        settle: Called once with how it ended, and the item that it got.
        item: What is to be put.
    """

    __slots__ = ("item", "settle")

    def __init__(
        self, settle: Callable[[str, Item | None], None], item: Item | None = None
    ) -> None:
        self.settle = settle
        self.item = item


class Listener(Protocol):
    """Takes items in the kernel."""

    def wake(self) -> None:
        """Come and `take` the next item; must be quick."""


class Channel:
    """One queue.

    Args:
        keeps_latest: An item that is put takes the place of the one before.
        most_items: How many items wait before a put waits.

    Attributes:
        lines: Those of the pools that it was sent to and that are open.
        was_sent: Whether it was sent to any.
        num_holders: How many objects of the kernel stand for it.
        listener: Takes the items, in the kernel.
    """

    def __init__(self, *, keeps_latest: bool, most_items: int) -> None:
        self._keeps_latest = keeps_latest
        self._most_items = most_items
        self._items: deque[Item] = deque()
        self._num_bytes = 0
        self._putters: deque[Waiter] = deque()
        self._getters: deque[Waiter] = deque()
        self._lent: dict[Waiter, Item] = {}  # to getters who have not said that they have it
        self._is_closed = False
        self.lines: set[Any] = set()
        self.was_sent = False
        self.num_holders = 0
        self.listener: Listener | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_state(self) -> bool:
        """Whether there is anything that a new channel would not know."""
        waits = self._items or self._putters or self._getters or self._lent
        return bool(waits or self._is_closed)

    @property
    def is_heard(self) -> bool:
        """Whether there is a listener, and it may still get something."""
        return self.listener is not None and bool(self._items or not self._is_closed)

    @property
    def has_ended(self) -> bool:
        """Whether the pools that it was sent to are gone."""
        return self.was_sent and not self.lines

    def has_lent(self, waiter: Waiter) -> bool:
        """Tell whether a getter has an item that it may not have got."""
        return waiter in self._lent

    # --- requests ----------------------------------------------------------------------

    def put(self, waiter: Waiter, *, waits: bool) -> None:
        """Take an item when there is room for it; settle with `full` instead of waiting."""
        item = waiter.item
        if self._is_closed or item is None:
            waiter.settle(CLOSED, None)
        elif self._keeps_latest or (not self._putters and self._has_room(item)):
            self._accept(waiter, item)
            self._flow()
        elif self.has_ended:
            waiter.settle(ENDED, None)
        elif waits:
            self._putters.append(waiter)
        else:
            waiter.settle(FULL, None)

    def get(self, waiter: Waiter, *, waits: bool) -> None:
        """Lend the next item to who asks, until `taken`; settle with `empty` instead of waiting."""
        if not self._items and (self._is_closed or self.has_ended):
            waiter.settle(CLOSED if self._is_closed else ENDED, None)
        elif self._items or waits:
            self._getters.append(waiter)
            self._flow()
        else:
            waiter.settle(EMPTY, None)

    def taken(self, waiter: Waiter) -> None:
        """Take note that a getter has its item."""
        self._lent.pop(waiter, None)

    def expire(self, waiter: Waiter) -> None:
        """Settle a request whose time is over; harmless where it has been settled."""
        if waiter in self._putters:
            self._putters.remove(waiter)
            waiter.settle(FULL, None)
            self._flow()  # a smaller one behind it may fit
        elif waiter in self._getters:
            self._getters.remove(waiter)
            waiter.settle(EMPTY, None)

    def withdraw(self, waiter: Waiter) -> None:
        """Forget a request, as who made it is gone or was interrupted; nothing is lost."""
        for waiters in (self._putters, self._getters):
            if waiter in waiters:
                waiters.remove(waiter)
        item = self._lent.pop(waiter, None)
        if item is not None and not (self._keeps_latest and self._items):
            self._items.appendleft(item)
            self._num_bytes += item.num_bytes
        self._flow()

    def close(self) -> None:
        """Refuse what is put from now on; what is there can be got."""
        self._is_closed = True
        self._settle_all(CLOSED)

    def line_closed(self, line: Any) -> None:
        """Take note that a pool has ended."""
        self.lines.discard(line)
        if self.has_ended:
            self._settle_all(ENDED)

    def listen(self, listener: Listener | None) -> None:
        """Wake a listener whenever there is an item to `take`."""
        self.listener = listener
        self._flow()

    def take(self, listener: Listener) -> Item | None:
        """Return the next item for the listener, None if there is none."""
        if not self._items or listener is not self.listener:
            return None
        item = self._pop()
        self._flow()
        return item

    # --- items -------------------------------------------------------------------------

    def _has_room(self, item: Item) -> bool:
        has_place = len(self._items) < self._most_items
        return not self._items or (has_place and self._num_bytes + item.num_bytes <= MOST_BYTES)

    def _accept(self, waiter: Waiter, item: Item) -> None:
        if self._keeps_latest:
            self._items.clear()
            self._num_bytes = 0
        self._items.append(item)
        self._num_bytes += item.num_bytes
        waiter.item = None
        waiter.settle(OK, None)

    def _pop(self) -> Item:
        item = self._items.popleft()
        self._num_bytes -= item.num_bytes
        return item

    def _flow(self) -> None:
        """Hand out what is there, and let in what waits."""
        while True:
            if self._items and self._getters:
                getter, item = self._getters.popleft(), self._pop()
                self._lent[getter] = item
                getter.settle(OK, item)
            elif self._putters and self._has_room(self._putters[0].item):  # type: ignore[arg-type]
                putter = self._putters.popleft()
                self._accept(putter, putter.item)  # type: ignore[arg-type]
            else:
                break
        if self._items and self.listener is not None:
            self.listener.wake()

    def _settle_all(self, how: str) -> None:
        for waiters in (self._putters, self._getters):
            while waiters:
                waiters.popleft().settle(how, None)
