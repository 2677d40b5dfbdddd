"""Starts the engines of a pool as one set, and others later as sets of one or more."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from jupyter_mgpu import children
from jupyter_mgpu.clusters import ClusterDescription
from jupyter_mgpu.transport.placement import Launched, Order


class SetLauncher(ABC):
    """A launcher that starts many engines at once. Its methods run in the owner's event loop.

    Args:
        size: How many engines the set has.
    """

    def __init__(self, size: int) -> None:
        self.expect(range(size))

    @abstractmethod
    async def launch(self, orders: Sequence[Order]) -> Launched:
        """Start engines, in the order of their ranks, and return when all have begun.

        When it is cancelled it ends what it has started.
        """

    def expect(self, ranks: Iterable[int]) -> None:
        """Start the next engines of these ranks all together; any other one alone."""
        self._awaited = set(ranks)
        self._orders: list[Order] = []
        self._is_complete = asyncio.Event()
        self._launching: asyncio.Task[Launched] | None = None

    async def start(self, order: Order) -> Launched:
        """Start an engine.

        Raises:
            PoolStartError: If it cannot be started.
        """
        if order.rank not in self._awaited:
            return await self.launch([order])
        self._awaited.discard(order.rank)
        self._orders.append(order)
        if self._launching is None:
            self._launching = asyncio.ensure_future(self._launch_all())
        if not self._awaited:
            self._is_complete.set()
        try:
            return await asyncio.shield(self._launching)
        except asyncio.CancelledError:
            self._launching.cancel()
            raise

    async def _launch_all(self) -> Launched:
        await self._is_complete.wait()
        return await self.launch(sorted(self._orders, key=lambda order: order.rank))


def launch_environment(cluster: ClusterDescription) -> dict[str, str]:
    """Return the variables that an engine's process needs from its very start."""
    own = {"PYTHONPATH": children.python_path()} if cluster.python is None else {}
    return {**own, **cluster.environment}
