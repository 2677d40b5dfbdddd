"""Items that are sent together, and who listens to what they tell."""

from collections.abc import Callable
from dataclasses import dataclass

from jupyter_mgpu.client import Listener
from jupyter_mgpu.loops.items import Item
from jupyter_mgpu.wire import Frame, Header


@dataclass(slots=True, eq=False)
class Chunk:
    """Items that are sent together.

    Attributes:
        id: Its task's.
        number: The same as a number, unique in the pool.
        items: What it was made of.
        frames: These, packed.
        num_done: How many of them have ended, from the first one on.
        rank: Where it runs; -1 while it waits.
    """

    id: str
    number: int
    items: list[Item]
    frames: list[Frame]
    num_done: int = 0
    rank: int = -1

    def rest(self) -> list[Item]:
        """Return the items that have not ended."""
        return self.items[self.num_done :]


def listen_until_end(
    take: Callable[[Header, list[Frame]], None], show_late: Callable[[Header, list[Frame]], None]
) -> Listener:
    """Make a listener that holds on to a loop no longer than its chunk runs.

    Args:
        take: Takes the chunk's events up to its end.
        show_late: Takes what comes after that, from a thread that an item has left behind.
    """
    current: Callable[[Header, list[Frame]], None] | None = take
    del take

    def listen(header: Header, frames: list[Frame]) -> bool:
        nonlocal current
        if current is None:
            show_late(header, frames)
            return False
        current(header, frames)
        if header["op"] == "ended":
            current = None
        return current is None

    return listen
