"""ipyparallel's controller of a pool: started when somebody wants it, and joined by the engines."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from jupyter_mgpu.clusters.probe import is_loopback
from jupyter_mgpu.errors import OwnerError
from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.owner.plans import PoolPlan
from jupyter_mgpu.transport.cluster import PoolCluster

Ask = Callable[[Future[Any], EngineRecord, str, dict[str, Any]], None]


class ControllerDoor:
    """Leads to the controller of one pool. Its methods run in the owner's event loop.

    Args:
        plan: The pool.
        cluster: Its processes.
        engines: Its engines by rank.
        ask: Asks an engine's control thread.
    """

    def __init__(
        self,
        plan: PoolPlan,
        cluster: PoolCluster,
        engines: Mapping[int, EngineRecord],
        ask: Ask,
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._engines = engines
        self._ask = ask

    def invite(self, engine: EngineRecord) -> None:
        """Have an engine join the controller, if there is one."""
        if (connection := self._cluster.connection) is not None:
            self._ask(Future(), engine, "join", {"connection": connection})

    async def ensure(self) -> int:
        """Start the controller, and have the engines join it.

        Returns:
            How many will at once: the others first end what they run.

        Raises:
            OwnerError: If hosts reach this one through ssh only, and so no port of its own, or not
                as ipyparallel can.
        """
        cluster, addresses = self._plan.cluster, self._plan.rendezvous.addresses
        if cluster is not None and cluster.kind == "ssh" and is_loopback(addresses[0]):
            raise OwnerError(
                "pool.client and %%px need ports of their own, but hosts of this pool reach the "
                "notebook's machine through ssh only. Use %%spmd or parfeval."
            )
        if len(addresses) > 1 or ":" in addresses[0]:
            raise OwnerError(
                "pool.client and %%px need one IPv4 address of the notebook's machine that all "
                f"engines reach, but they use {', '.join(addresses)}. Use %%spmd or parfeval."
            )
        await self._cluster.ensure_controller()
        engines = [engine for engine in self._engines.values() if engine.is_alive]
        for engine in engines:
            self.invite(engine)
        return sum(engine.task is None for engine in engines)

    async def client(self) -> Any:
        """Connect a client to the controller, which is started if there is none."""
        return await self._cluster.client(await self.ensure())
