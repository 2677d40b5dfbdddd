"""GPUs of other hosts: chosen, pinned, leased and proven where they are."""

import os
import threading
from collections.abc import Iterator

import pytest
from gpu_stubs import GpuMachine, gpu_uuid, gpus, mixed_gpus
from ssh_hosts import Hosts

import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.errors import MgpuError, PoolStartError, SelectionError
from jupyter_mgpu.leases import LeaseBook
from jupyter_mgpu.pool import Pool
from notebooks import wait_until

pytestmark = pytest.mark.ssh

VARIABLES = ("LD_LIBRARY_PATH", "MGPU_LIBCUDA", "MGPU_STUB_SCENARIO", "MGPU_LEASE_DIR")


@pytest.fixture(scope="module")
def machines(ssh_hosts: Hosts, gpu_machine) -> dict[str, GpuMachine]:
    """Two GPUs on hosta; four on hostb, which CUDA orders by speed."""
    found = {}
    for host, scenario in ((ssh_hosts.a, gpus(2)), (ssh_hosts.b, mixed_gpus())):
        machine = found[host.name] = gpu_machine(scenario)
        host.environment = {**host.environment, **{name: machine[name] for name in VARIABLES}}
        host.kill_sshd()
        host.start_sshd()
    return found


def leases(machine: GpuMachine) -> list[tuple[str, int, str]]:
    live = LeaseBook(machine.lease_folder).live()
    return sorted((lease.gpu_uuid, lease.rank, lease.pool) for lease in live)


def describe(hosts: Hosts, **gpus_of: str | None) -> ClusterDescription:
    chosen = tuple(HostDescription(name, name, gpus=gpus) for name, gpus in gpus_of.items())
    return ClusterDescription("lab", "ssh", hosts=chosen, options=SshOptions(config=hosts.config))


@pytest.fixture
def three(ssh_hosts: Hosts, machines: dict[str, GpuMachine]) -> Iterator[Pool]:
    """All GPUs of hosta, and GPU 1 of hostb."""
    pool = mgpu.parpool(3, cluster=describe(ssh_hosts, hosta=None, hostb="1,2"), name="three")
    yield pool
    pool.shutdown(wait_for_tasks=False)
    wait_until(lambda: not any(map(leases, machines.values())), 60, "the end of all leases")


def test_each_engine_gets_a_gpu_of_its_host_leased_and_proven_there(
    three: Pool, machines: dict[str, GpuMachine]
) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MGPU_LOCAL_RANK", "LOCAL_RANK")

    seen = mgpu.spmd(lambda: [os.environ[name] for name in names])

    assert list(seen) == [
        ["0", "PCI_BUS_ID", "0", "0"],
        ["1", "PCI_BUS_ID", "1", "0"],
        ["1", "PCI_BUS_ID", "0", "0"],
    ]
    assert [(engine.place, engine.proven) for engine in three.engines] == [
        ("GPU 0 (NVIDIA H200) on hosta", True),
        ("GPU 1 (NVIDIA H200) on hosta", True),
        ("GPU 1 (NVIDIA L40S) on hostb", True),
    ]
    assert leases(machines["hosta"]) == [(gpu_uuid(0), 0, "three"), (gpu_uuid(1), 1, "three")]
    assert leases(machines["hostb"]) == [(gpu_uuid(1), 2, "three")]


def test_a_replaced_engine_has_its_gpu_and_lease_again(
    three: Pool, machines: dict[str, GpuMachine]
) -> None:
    three.restart([1])

    wait_until(lambda: three.engines[1].starts == 1, 60, "a new engine")
    wait_until(lambda: three.engines[1].state == "idle", 60, "a new engine, idle")
    assert mgpu.spmd(lambda: os.environ["CUDA_VISIBLE_DEVICES"])[1] == "1"
    assert three.engines[1].proven is True
    assert leases(machines["hosta"]) == [(gpu_uuid(0), 0, "three"), (gpu_uuid(1), 1, "three")]


@pytest.mark.usefixtures("three")
def test_gpus_that_others_use_are_refused_with_their_holder(ssh_hosts: Hosts) -> None:
    with pytest.raises(PoolStartError, match=r"On hostb: .*pool 'three'"):
        mgpu.parpool(cluster=describe(ssh_hosts, hostb="1"), name="late")


@pytest.mark.usefixtures("machines")
def test_of_two_pools_that_want_the_same_gpu_at_once_one_gets_it(ssh_hosts: Hosts) -> None:
    ended: dict[str, Pool | MgpuError] = {}

    def start(name: str) -> None:
        try:
            ended[name] = mgpu.parpool(cluster=describe(ssh_hosts, hosta="0"), name=name)
        except MgpuError as error:
            ended[name] = error

    threads = [threading.Thread(target=start, args=(name,)) for name in ("this", "that")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    pools = [pool for pool in ended.values() if isinstance(pool, Pool)]
    for pool in pools:
        pool.shutdown(wait_for_tasks=False)

    (winner,) = (pool.name for pool in pools)
    (error,) = (str(error) for error in ended.values() if isinstance(error, MgpuError))
    assert f"pool {winner!r}" in error
    assert "hosta" in error


MIXED = """
import os
from pathlib import Path
import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.leases import LeaseBook
hosts = (
    HostDescription("here", "here", gpus="1", is_local=True),
    HostDescription("hosta", "hosta", gpus="0,1"),
)
options = SshOptions(config=Path({config!r}))
cluster = ClusterDescription("lab", "ssh", hosts=hosts, options=options)
names = ("CUDA_VISIBLE_DEVICES", "MGPU_LOCAL_RANK")
with mgpu.parpool(cluster=cluster, name="mixed") as pool:
    seen = mgpu.spmd(lambda: [os.environ[name] for name in names])
    engines = [[engine.place, engine.proven, seen[engine.rank]] for engine in pool.engines]
    held = [lease.gpu_uuid for lease in LeaseBook().live()]
result = [engines, held]
"""


def test_a_mixed_pool_has_gpus_here_and_there(
    ssh_hosts: Hosts, machines: dict[str, GpuMachine], gpu_machine
) -> None:
    here = gpu_machine(gpus(3))

    engines, held = here.result(MIXED.format(config=str(ssh_hosts.config)))

    assert engines == [
        ["GPU 1 (NVIDIA H200)", True, ["1", "0"]],
        ["GPU 0 (NVIDIA H200) on hosta", True, ["0", "0"]],
        ["GPU 1 (NVIDIA H200) on hosta", True, ["1", "1"]],
    ]
    assert held == [gpu_uuid(1)]
    wait_until(lambda: not leases(machines["hosta"]), 60, "the end of the leases there")


@pytest.mark.usefixtures("machines")
def test_more_engines_than_gpus_are_refused_with_what_each_host_has(ssh_hosts: Hosts) -> None:
    cluster = describe(ssh_hosts, hosta=None, hostb="1,2")

    with pytest.raises(SelectionError, match=r"5 engines.*have 4 \(hosta: 2, hostb: 2\)"):
        mgpu.parpool(5, cluster=cluster, name="large")
    with pytest.raises(PoolStartError, match=r"On hosta: GPU 7 .* has: 0, 1\. Correct gpus in"):
        mgpu.parpool(cluster=describe(ssh_hosts, hosta="7"), name="wrong")
