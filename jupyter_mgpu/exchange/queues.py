"""The queues of this kernel: for its own threads, and for the engines of all its pools."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jupyter_mgpu.exchange.channel import ENDED, Channel, Item, Listener, Waiter
from jupyter_mgpu.exchange.lines import Line, open_lines
from jupyter_mgpu.packing import companions, count_bytes
from jupyter_mgpu.wire import Frame, Header


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Which queue, and how it was made: whoever uses it first opens it.

    Attributes:
        key: Unique everywhere.
        keeps_latest: Whether an item takes the place of the one before.
        most_items: How many items wait before a put waits.
    """

    key: str
    keeps_latest: bool
    most_items: int


_lock = threading.Lock()
_channels: dict[str, Channel] = {}
_requests: dict[tuple[Line, str, int], tuple[Channel, Waiter]] = {}  # open ones of engines
_forgotten: deque[str] = deque()  # by collected objects, in any thread and between any two lines


def _open(options: QueueOptions) -> Channel:
    _sweep()
    channel = _channels.get(options.key)
    if channel is None:
        channel = _channels[options.key] = Channel(
            keeps_latest=options.keeps_latest, most_items=options.most_items
        )
    return channel


def _sweep() -> None:
    while _forgotten:
        key = _forgotten.popleft()
        channel = _channels.get(key)
        if channel is not None:
            channel.num_holders -= 1
            _drop_if_useless(key, channel)


def _drop_if_useless(key: str, channel: Channel) -> None:
    """Drop a queue that the kernel has forgotten, if no engine can miss it."""
    is_needed = channel.has_state and channel.lines
    if channel.num_holders == 0 and not channel.is_heard and not is_needed:
        del _channels[key]


# --- the kernel's own side -------------------------------------------------------------


class _Wait:
    """A thread of the kernel that waits for its request."""

    def __init__(self) -> None:
        self.status = ""
        self.item: Item | None = None
        self.is_over = threading.Event()

    def settle(self, status: str, item: Item | None) -> None:
        self.status, self.item = status, item
        self.is_over.set()


def hold(options: QueueOptions) -> None:
    """Take note of an object in the kernel that stands for a queue."""
    with _lock:
        _open(options).num_holders += 1


def forget(key: str) -> None:
    """Take note that such an object is gone; callable while anything else is under way."""
    _forgotten.append(key)


def sent(options: QueueOptions) -> None:
    """Take note that a queue is being packed; if it is unknown for which pool, for any open one."""
    destination = companions.destination_of_packed()
    with _lock:
        _add_lines(_open(options), open_lines() if destination is None else [destination])


def put(options: QueueOptions, frames: Sequence[Frame], timeout: float | None) -> str:
    """Put an item; returns how that ended."""
    with _lock:
        if _open(options).has_ended and not open_lines():
            return ENDED
    status, _ = _ask(options, Item(frames, count_bytes(frames)), timeout, Channel.put)
    return status


def get(options: QueueOptions, timeout: float | None) -> tuple[str, Sequence[Frame]]:
    """Get an item; returns how that ended, and its frames."""
    status, item = _ask(options, None, timeout, Channel.get)
    return status, item.frames if item is not None else ()


def _ask(
    options: QueueOptions,
    item: Item | None,
    timeout: float | None,
    request: Callable[..., None],
) -> tuple[str, Item | None]:
    wait = _Wait()
    waiter = Waiter(wait.settle, item)
    with _lock:
        channel = _open(options)
    try:
        with _lock:
            request(channel, waiter, waits=timeout is None or timeout > 0)
        if not wait.is_over.wait(timeout):
            with _lock:
                channel.expire(waiter)  # settles it, if that did not happen in this moment
        with _lock:
            channel.taken(waiter)
    except BaseException:
        with _lock:
            channel.withdraw(waiter)
        raise
    return wait.status, wait.item


def size(options: QueueOptions) -> int:
    """Count the items that wait."""
    with _lock:
        return len(_open(options))


def close(options: QueueOptions) -> None:
    """Close a queue."""
    with _lock:
        _open(options).close()


def listen(options: QueueOptions, listener: Listener | None) -> None:
    """Wake a listener whenever there is an item to `take`."""
    with _lock:
        _open(options).listen(listener)


def take(options: QueueOptions, listener: Listener) -> Sequence[Frame] | None:
    """Return an item's frames; None if there is none, or the listener is no longer the one."""
    with _lock:
        item = _open(options).take(listener)
        return item.frames if item is not None else None


# --- the engines' side -----------------------------------------------------------------


def answer(line: Line, header: Header, frames: Sequence[Frame]) -> None:
    """Take a request of an engine; it is answered now or later."""
    key = (line, header["engine"], header["id"])
    with _lock:
        if header["do"] in ("taken", "expire", "abandon"):
            _follow_up(key, header["do"])
            return
        channel = _open(QueueOptions(*header["queue"]))
        _add_lines(channel, [line])
        if header["do"] in ("put", "get"):
            item = Item(frames, count_bytes(frames)) if header["do"] == "put" else None
            waiter = Waiter(lambda status, got: _reply(key, status, got), item)
            _requests[key] = channel, waiter
            request = channel.put if item is not None else channel.get
            request(waiter, waits=header["waits"])
            return
        if header["do"] == "close":
            channel.close()
        _send(key, {"status": "ok", "size": len(channel)}, ())


def _follow_up(key: tuple[Line, str, int], do: str) -> None:
    channel, waiter = _requests.get(key, (None, None))
    if channel is None or waiter is None:
        return
    if do == "expire":
        channel.expire(waiter)
        return
    del _requests[key]
    if do == "taken":
        channel.taken(waiter)
    else:
        channel.withdraw(waiter)


def _reply(key: tuple[Line, str, int], status: str, item: Item | None) -> None:
    if item is None:
        _requests.pop(key, None)
    _send(key, {"status": status, "is_lent": item is not None}, item.frames if item else ())


def _send(key: tuple[Line, str, int], facts: Header, frames: Sequence[Frame]) -> None:
    line, engine, number = key
    line.answer(engine, {"op": "answer", "id": number, **facts}, frames)


def _add_lines(channel: Channel, lines: Iterable[Line]) -> None:
    for line in lines:
        channel.lines.add(line)
        channel.was_sent = True


def forget_engine(line: Line, rank: int) -> None:
    """Take back what an engine that has died asked for and was lent."""
    with _lock:
        _withdraw([key for key in _requests if key[0] is line and _rank_of(key[1]) == rank])


def _rank_of(engine: str) -> int:
    return int(engine.partition(".")[0])


def _withdraw(keys: Iterable[tuple[Line, str, int]]) -> None:
    """Forget requests: those that wait first, so that what was lent comes back in order."""
    open_ones = [_requests.pop(key) for key in keys]
    for channel, waiter in open_ones:
        if not channel.has_lent(waiter):
            channel.withdraw(waiter)
    for channel, waiter in reversed(open_ones):
        channel.withdraw(waiter)


def forget_line(line: Line) -> None:
    """Take note that a pool has ended."""
    with _lock:
        _sweep()
        _withdraw([key for key in _requests if key[0] is line])
        for key, channel in list(_channels.items()):
            channel.line_closed(line)
            _drop_if_useless(key, channel)


def _after_fork() -> None:
    """Give a forked child a lock that nobody holds, and none of its parent's queues."""
    global _lock
    _lock = threading.Lock()
    _channels.clear()
    _requests.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
