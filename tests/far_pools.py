"""Pools with engines that their owner reaches by TCP alone, as it reaches those of other hosts."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jupyter_mgpu import notebook, pools
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.gpus import CPU_ENVIRONMENT, Request
from jupyter_mgpu.on_engine import orders
from jupyter_mgpu.opening.new_pool import private_folder
from jupyter_mgpu.owner.owner import Owner
from jupyter_mgpu.owner.plans import EnginePlan, PoolPlan
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.rendezvous import Rendezvous
from jupyter_mgpu.sending import Sender
from jupyter_mgpu.transport.placement import Order, Placement


class Loopback:
    """A launcher of this very machine; what it starts shares nothing with the owner.

    Args:
        variables: What is in the environment there.
        prefix: A command that runs another one, such as `ip netns exec NAME`.
    """

    def __init__(
        self, variables: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self._variables = dict(variables or {})
        self._prefix = prefix
        self.processes: list[subprocess.Popen[bytes]] = []

    async def start(self, order: Order) -> "LoopbackProcess":
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MGPU_")
        }
        process = subprocess.Popen(
            [*self._prefix, sys.executable, *order.command],
            env=environment | self._variables | orders.fold([dict(order.environment)]),
            start_new_session=True,
        )
        self.processes.append(process)
        return LoopbackProcess(process)

    async def close(self) -> None:
        for process in self.processes:
            process.wait(60)


class LoopbackProcess:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def explain(self, _silent: str | None, _silent_s: float, /) -> None:
        return None

    def note(self) -> None:
        return None


def far_plan(rank: int, placement: Placement | None, place: HostPlace) -> EnginePlan:
    environment = {**CPU_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    return EnginePlan(rank, "CPU", "cpu", environment, placement=placement, place=place)


@contextlib.contextmanager
def far_pool(
    plans: Sequence[EnginePlan], *, name: str = "far", address: str | Sequence[str] = "127.0.0.1"
) -> Iterator[Pool]:
    """Start a pool of planned engines, and end it."""
    said: list[str] = []
    addresses = [address] if isinstance(address, str) else address
    plan = PoolPlan(name, tuple(plans), Path(private_folder()), Rendezvous(*addresses))
    pool = Pool(
        functools.partial(Owner, plan),
        request=Request(pool=name),
        claims={},
        sender=Sender(notebook.user_namespace(), hidden=notebook.hidden_names()),
        say=said.append,
        on_end=pools.unregister,
    )
    pool.said = said
    pool.start()
    pools.register(pool)
    try:
        yield pool
    finally:
        pool.shutdown(wait_for_tasks=False)


def mixed_plans(launcher: Loopback) -> list[EnginePlan]:
    """Plan rank 0 on this machine, and rank 1 elsewhere."""
    there = Placement("elsewhere", launcher)
    return [far_plan(0, None, HostPlace(0, 1, 0, 2)), far_plan(1, there, HostPlace(0, 1, 1, 2))]
