"""`DataQueue`: a queue that goes wherever code runs."""

import queue
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

from jupyter_mgpu import packing
from jupyter_mgpu.data_queues.listening import Listening
from jupyter_mgpu.data_queues.ports import EnginePort, KernelPort, Port
from jupyter_mgpu.errors import PoolClosedError, QueueClosedError
from jupyter_mgpu.exchange import channel, queues
from jupyter_mgpu.exchange.queues import QueueOptions
from jupyter_mgpu.notebook import refuse_on_engine
from jupyter_mgpu.on_engine import context


class DataQueue:
    """A queue between the notebook and its engines, and between engines.

    It may be an argument, a global or an item of whatever runs on an engine: what travels is its
    key. The items wait in the kernel. Each goes to one `get`, in the order of the puts of each
    producer. What an engine was about to get when it died or was stopped is got by the next one.

    Args:
        policy: "all" keeps every item: a put waits while the queue is full. "latest" keeps the
            newest item only, and a put never waits.
        maxsize: How many items wait before a put does; 1000 by default. Beside that, 64 MiB.

    Raises:
        ValueError: If an option makes no sense.

    Example:
        >>> losses = DataQueue()
        >>> losses.after_each(print)
        >>> parfeval(train, losses)  # calls losses.put(...)
    """

    def __init__(
        self, policy: Literal["all", "latest"] = "all", maxsize: int | None = None
    ) -> None:
        _check(policy, maxsize)
        keeps_latest = policy == "latest"
        most_items = 1 if keeps_latest else maxsize or channel.MOST_ITEMS
        self._use(QueueOptions(uuid.uuid4().hex, keeps_latest, most_items))

    def _use(self, options: QueueOptions) -> None:
        self._options = options
        self._port: Port
        if context.current() is not None:
            self._port = EnginePort(options)
        else:
            self._port = KernelPort(options)
            queues.hold(options)
            weakref.finalize(self, queues.forget, options.key).atexit = False

    def put(self, item: Any, timeout: float | None = None) -> None:
        """Put an item, as it is now; waits while the queue is full.

        Args:
            item: Any object that can be pickled.
            timeout: Seconds to wait; None for as long as it takes, 0 for not at all.

        Raises:
            queue.Full: If there was no room in time; the item was not put.
            QueueClosedError: If the queue is closed.
            PoolClosedError: If the pools that it was sent to have ended.
            PackingError: If the item cannot be pickled; it says which part.
        """
        _check_timeout(timeout)
        frames = packing.pack((item,), copy=True, labels=("item",), place=self._port.place)
        status = self._port.put(frames, timeout)
        if status == channel.FULL:
            raise queue.Full(f"{self!r} stayed full for {timeout:g} s.")
        self._check_status(status)

    send = put

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the next item and take it out.

        Args:
            timeout: Seconds to wait; None for as long as it takes, 0 for not at all.

        Raises:
            queue.Empty: If none came in time.
            QueueClosedError: If the queue is closed and nothing is left in it.
            PoolClosedError: If the pools that it was sent to have ended and nothing is left in it.
        """
        _check_timeout(timeout)
        status, frames = self._port.get(timeout)
        if status == channel.EMPTY:
            raise queue.Empty(f"Nothing came in {self!r} for {timeout:g} s.")
        self._check_status(status)
        (item,) = packing.unpack(frames)
        return item

    def __iter__(self) -> Iterator[Any]:
        """Get items until the queue is closed and nothing is left in it."""
        while True:
            try:
                yield self.get()
            except QueueClosedError:
                return

    def qsize(self) -> int:
        """Count the items that wait."""
        return self._port.size()

    def empty(self) -> bool:
        """Tell whether no item waits."""
        return self.qsize() == 0

    def close(self) -> None:
        """Refuse further puts, wherever; what is there can be got. Harmless when it was closed."""
        self._port.close()

    def after_each(self, fn: Callable[[Any], Any] | None) -> None:
        """Call a function in this kernel with each item, also with those that wait already.

        All callbacks run in one thread, one after the other. What they print and show, and their
        errors, appear in the cell that registered them.

        Args:
            fn: Takes an item. It takes the place of the one before; None for no more calls.
        """
        refuse_on_engine("after_each")
        if fn is not None and not callable(fn):
            raise TypeError(f"A {type(fn).__name__} was given where a function is called.")
        listening = Listening(self._options, fn) if fn is not None else None
        queues.listen(self._options, listening)

    def _check_status(self, status: str) -> None:
        if status == channel.CLOSED:
            raise QueueClosedError(f"{self!r} is closed.")
        if status == channel.ORPHANED:
            raise PoolClosedError(
                f"The items of {self!r} were in a kernel that has ended: nobody is at its other "
                "end. Return results, print or report instead: that outlives the kernel."
            )
        if status == channel.ENDED:
            raise PoolClosedError(
                f"The pool that {self!r} was sent to has ended: nobody is at its other end."
            )

    def __reduce__(self) -> Any:
        if context.current() is None:
            queues.sent(self._options)
        return rebuild, (self._options,)

    def __repr__(self) -> str:
        options = self._options
        what = "policy='latest'" if options.keeps_latest else f"maxsize={options.most_items}"
        return f"<DataQueue {options.key[:8]}, {what}>"


class _Handle(DataQueue):
    """A queue that was made elsewhere."""

    def __init__(self, options: QueueOptions) -> None:
        self._use(options)
        if context.current() is None:
            queues.sent(options)  # it came from an engine, which may be the only other holder


def rebuild(options: QueueOptions) -> DataQueue:
    """Return a queue that was made elsewhere."""
    return _Handle(options)


def _check(policy: str, maxsize: int | None) -> None:
    if policy not in ("all", "latest"):
        raise ValueError(f"The policy {policy!r} was given; it must be 'all' or 'latest'.")
    if maxsize is None:
        return
    if type(maxsize) is not int or maxsize < 1:
        raise ValueError(f"maxsize={maxsize!r} was given; it must be a whole number from 1 on.")
    if policy == "latest" and maxsize != 1:
        raise ValueError(f"maxsize={maxsize} was given, but policy='latest' keeps one item.")


def _check_timeout(timeout: float | None) -> None:
    if isinstance(timeout, bool):  # as in queue.Queue.get(True)
        raise TypeError(f"{timeout} was given as time-out; it is a number of seconds, or None.")
    if timeout is not None and timeout < 0:
        raise ValueError(f"A time-out of {timeout:g} s was given; it must be 0 or more, or None.")
