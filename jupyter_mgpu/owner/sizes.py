"""Makes a pool larger or smaller, one change at a time."""

import asyncio
from collections.abc import Callable, Sequence

from jupyter_mgpu.errors import PoolStartError
from jupyter_mgpu.owner.engine_record import Death, EngineRecord
from jupyter_mgpu.owner.engine_room import EngineRoom
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.owner.scheduler import Scheduler


class Sizes:
    """Changes the size of one pool. Its methods run in the owner's event loop.

    Args:
        pool: The pool's name.
        room: Its engines.
        scheduler: Its tasks.
        lose: Lets those who wait for an engine know that it has ended.
        on_change: Called when the pool has another size.
    """

    def __init__(
        self,
        pool: str,
        room: EngineRoom,
        scheduler: Scheduler,
        lose: Callable[[EngineRecord, Death], None],
        on_change: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._room = room
        self._scheduler = scheduler
        self._lose = lose
        self._on_change = on_change
        self._turn = asyncio.Lock()

    async def grow(self, plans: Sequence[EnginePlan], on_turn: Callable[[], None]) -> None:
        """Add engines, and wait until they are ready.

        Args:
            plans: The engines.
            on_turn: Called when it is their turn.

        Raises:
            PoolStartError: If one does not come up, or the pool has another size by now.
        """
        async with self._turn:  # one that was stopped still gives back what it had
            size = len(self._room.engines)
            if plans[0].rank != size:
                raise PoolStartError(
                    f"The pool {self._pool!r} has {size} engines by now: it was made another size "
                    "at the same time. Ask again."
                )
            on_turn()
            await self._room.start(plans)
            self._changed()

    async def shrink(self, size: int) -> None:
        """End the engines of the last ranks; they must be idle."""
        async with self._turn:
            for engine in [e for e in self._room.engines.values() if e.rank >= size]:
                self._room.dismiss(engine)
                why = f"The engine of rank {engine.rank} was ended: the pool has {size} engines."
                self._lose(engine, Death(why, None, is_replaced=True))
            self._changed()

    def _changed(self) -> None:
        self._scheduler.on_new_world()
        self._on_change()
