"""The constants of this kernel, packed, by key: each engine fetches one at its first use there.

`free` runs when an object is collected, in any thread and between any two lines: it takes no lock.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.exchange.lines import Line, place
from jupyter_mgpu.packing import Frame
from jupyter_mgpu.wire import Header


class Ticket:
    """Keeps a constant published: its maker has one, and each task that waits or runs with it."""


@dataclass(slots=True)
class Publication:
    """One constant.

    Attributes:
        frames: How to make it, packed.
        home: For the values of a composite, the line of its pool; None where any pool will do.
        has_cleanup: Whether something is to be done where it is freed.
        maker: The object in this kernel.
        ticket: What keeps it published.
        is_placed: Whether its frames are where the engines can open them.
        fetched: The lines whose engines may have it.
    """

    frames: Sequence[Frame]
    home: Line | None
    has_cleanup: bool
    maker: "weakref.ref[Any]"
    ticket: "weakref.ref[Ticket]"
    is_placed: bool
    fetched: set[Line] = field(default_factory=set)


_publications: dict[str, Publication] = {}


def publish(
    key: str, frames: Sequence[Frame], *, maker: Any, home: Line | None, has_cleanup: bool
) -> Ticket:
    """Let engines fetch a constant until the ticket is gone, or it is freed."""
    ticket = Ticket()
    _publications[key] = Publication(
        frames, home, has_cleanup, weakref.ref(maker), weakref.ref(ticket), place() is not None
    )
    weakref.finalize(ticket, free, key).atexit = False
    return ticket


def find(key: str) -> Publication | None:
    """Return a constant that has not been freed."""
    return _publications.get(key)


def move_to_shared_memory(key: str) -> None:
    """Put what was packed before there was a pool where its engines can open it."""
    publication, put = _publications.get(key), place()
    if publication is not None and put is not None and not publication.is_placed:
        publication.is_placed = True
        publication.frames = put(publication.frames)


def free(key: str) -> None:
    """Free a constant here and, between two of its tasks, on each engine."""
    publication = _publications.pop(key, None)
    for line in list(publication.fetched) if publication is not None else ():
        line.post({"op": "free", "key": key})


def answer(line: Line, header: Header) -> None:
    """Answer an engine that asks for a constant."""
    key = header["key"]
    publication = _publications.get(key)
    frames: Sequence[Frame] = ()
    if publication is None:
        status = "gone"
    elif publication.home is not None and publication.home is not line:
        status = "foreign"
    else:
        status, frames = "ok", publication.frames
        publication.fetched.add(line)
        if key not in _publications:  # freed in this moment
            line.post({"op": "free", "key": key})
    line.answer(header["engine"], {"op": "answer", "id": header["id"], "status": status}, frames)


def forget_line(line: Line) -> None:
    """Take note that a pool has ended."""
    for publication in list(_publications.values()):
        publication.fetched.discard(line)


def needs_cleanup(line: Line) -> bool:
    """Tell whether something is to be done on a pool's engines before they end."""
    return any(
        publication.has_cleanup and line in publication.fetched
        for publication in list(_publications.values())
    )
