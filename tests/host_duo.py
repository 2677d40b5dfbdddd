"""A pool of rank 0 here and ranks 1 and 2 on another host with GPUs, for tests of its readings."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import psutil
import pytest
from far_pools import Loopback, far_plan, far_pool
from gpu_stubs import GpuMachine, gpu, gpu_uuid

import jupyter_mgpu as mgpu
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.monitor import Snapshot
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.transport.placement import Placement
from jupyter_mgpu.widgets import telemetry
from notebooks import wait_until

FAR_GPUS = "\n".join([gpu(0, name="NVIDIA_L40S", used=1000, util=37), gpu(1, name="NVIDIA_L40S")])
REPORTER = "jupyter_mgpu.monitor.reporter"


@dataclass
class Duo:
    """A pool of rank 0 here, ranks 1 and 2 on `hostb`, and what `hostb` has."""

    pool: Pool
    machine: GpuMachine
    launcher: Loopback

    def samplers(self) -> list[psutil.Process]:
        """Return the processes that read hostb."""
        found = []
        for guard in self.launcher.processes:
            with contextlib.suppress(psutil.Error):  # it, or its child, has just ended
                children = psutil.Process(guard.pid).children()
                found += [child for child in children if REPORTER in child.cmdline()]
        return found


def duo_plans(launcher: Loopback) -> list[EnginePlan]:
    """Plan rank 0 on this machine, and ranks 1 and 2 on the GPUs 0 and 1 of hostb."""
    there = Placement("hostb", launcher)
    far = [
        replace(
            far_plan(number + 1, there, HostPlace(number, 2, 1, 2)),
            device=f"GPU {number} (NVIDIA L40S)",
            gpu_uuids=(gpu_uuid(number),),
        )
        for number in (0, 1)
    ]
    return [far_plan(0, None, HostPlace(0, 1, 0, 2)), *far]


@pytest.fixture
def looks_of_views(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End what is read for a view that a test asks by itself, as the loop of the views would."""
    yield
    monkeypatch.setattr(telemetry, "REST_AFTER_S", 0.0)
    telemetry.telemetry.rest()


@pytest.fixture(scope="module")
def duo_pool(gpu_machine: Callable[[str], GpuMachine]) -> Iterator[Duo]:
    machine = gpu_machine(FAR_GPUS)
    launcher = Loopback(machine)
    with far_pool(duo_plans(launcher)) as pool:
        yield Duo(pool, machine, launcher)


@pytest.fixture
def duo(duo_pool: Duo) -> Duo:
    """All engines are idle, and hostb has its first GPUs."""
    wait_until(lambda: all(e.state == "idle" for e in duo_pool.pool.engines), 60, "idle engines")
    duo_pool.machine.write(FAR_GPUS)
    return duo_pool


def until(is_so: Callable[[Snapshot], bool], words: str, timeout_s: float = 60) -> Snapshot:
    """Take snapshots until one is as wanted."""
    found: list[Snapshot] = []

    def look() -> bool:
        found[:] = [mgpu.snapshot()]
        return is_so(found[0])

    wait_until(look, timeout_s, words)
    return found[0]
