"""Where engines run that do not run on this machine, and what starts them there.

A new way to start engines (a scheduler, MPI, a cloud) is one class with the methods of `Launcher`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jupyter_mgpu.wire import Header


@dataclass(frozen=True, slots=True)
class Order:
    """One engine that is to be started on another host.

    Attributes:
        rank: Its place in the pool.
        number: What tells it from all others that were started for this rank.
        environment: All that the engine must know, with secrets: it may stand in an environment,
            a file of mode 0600 or a standard input, never on a command line. `orders.fold` makes
            one variable of it.
        command: What to run, after the host's own Python.
        begun: Set when its guard has said that it runs, to what it said; to None if it has ended.
    """

    rank: int
    number: int
    environment: Mapping[str, str]
    command: tuple[str, ...]
    begun: "asyncio.Future[Header | None]"


class Launched(Protocol):
    """What a launcher knows of one engine that it has started."""

    def kill(self) -> None:
        """Have it ended by the launcher's own means; must return at once, may fail silently.

        Called only where the engine's guard does not answer.
        """

    async def explain(self, silent: str | None, silent_s: float, /) -> str | None:
        """Say why the launcher has ended it, as a clause that follows the engine's name.

        Called when its guard was told by a signal to end, or is not heard of any more. It is given
        some seconds; None leaves the guard's own words.

        Args:
            silent: The engine's host, if it is not heard of any more; else None.
            silent_s: For how long it is not.
        """

    def note(self) -> str | None:
        """Say what people should know of it now, such as a time limit; must return at once."""


class Launcher(Protocol):
    """Starts engines on other hosts. Its methods run in the owner's event loop."""

    async def start(self, order: Order) -> Launched:
        """Start an engine, and return when its process runs.

        All engines of a pool are ordered at the same time, so that a launcher may wait until it
        has them all and start them as one set; so are those that join it later. Replacements are
        ordered one by one. A launcher that has to queue may take as long as it likes: the start
        time-out begins afterwards.

        Raises:
            PoolStartError: If it cannot be started; it says why and what to do.
            HostUnreachableError: If the host does not answer: it is tried again later.
        """

    async def close(self) -> None:
        """End what belongs to the launcher itself; its engines have been ended."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one engine runs.

    Attributes:
        host: The host's name, for people; the scheduler's word where it chooses the host.
        launcher: Starts engines there; one object for all engines of the pool that it starts.
    """

    host: str
    launcher: Launcher
