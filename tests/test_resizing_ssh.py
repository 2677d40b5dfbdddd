"""Pools over ssh that become larger or smaller: on what their hosts have free."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from gpu_stubs import GpuMachine, gpu_uuid, gpus
from ssh_hosts import Host, Hosts

import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.errors import SelectionError
from jupyter_mgpu.leases import LeaseBook
from jupyter_mgpu.pool import Pool
from notebooks import wait_until

pytestmark = pytest.mark.ssh

VARIABLES = ("LD_LIBRARY_PATH", "MGPU_LIBCUDA", "MGPU_STUB_SCENARIO", "MGPU_LEASE_DIR")


@pytest.fixture(scope="module")
def machines(ssh_hosts: Hosts, gpu_machine: Callable[[str], Any]) -> dict[str, GpuMachine]:
    """Two GPUs on hosta and three on hostb."""
    found = {}
    for host, number in ((ssh_hosts.a, 2), (ssh_hosts.b, 3)):
        machine = found[host.name] = gpu_machine(gpus(number))
        host.environment = {**host.environment, **{name: machine[name] for name in VARIABLES}}
        host.kill_sshd()
        host.start_sshd()
    return found


def leased(machine: GpuMachine) -> list[str]:
    return sorted(lease.gpu_uuid for lease in LeaseBook(machine.lease_folder).live())


def describe(hosts: Hosts, *chosen: HostDescription) -> ClusterDescription:
    return ClusterDescription("lab", "ssh", hosts=chosen, options=SshOptions(config=hosts.config))


def cpus(host: Host) -> HostDescription:
    return HostDescription(host.name, host.name, gpus="none")


@pytest.fixture
def lab(ssh_hosts: Hosts, machines: dict[str, GpuMachine]) -> Iterator[Pool]:
    """A pool of one engine, on hosta; the cluster is all of hosta and GPUs 2 and 0 of hostb."""
    chosen = (HostDescription("hosta", "hosta"), HostDescription("hostb", "hostb", gpus="2,0"))
    pool = mgpu.parpool(1, cluster=describe(ssh_hosts, *chosen), name="lab")
    yield pool
    pool.shutdown(wait_for_tasks=False)
    wait_until(lambda: not any(map(leased, machines.values())), 60, "the end of all leases")


def world() -> list[str]:
    names = ("RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "LOCAL_RANK", "MGPU_LOCAL_RANK")
    return [os.environ[name] for name in names]


def test_it_grows_onto_free_gpus_of_its_hosts_and_gives_them_back(
    lab: Pool, machines: dict[str, GpuMachine]
) -> None:
    lab["x"] = 7
    first = lab.engines[0].pid
    assert leased(machines["hosta"]) == [gpu_uuid(0)]

    assert mgpu.parpool(4, name="lab") is lab

    assert [(engine.place, engine.proven) for engine in lab.engines] == [
        ("GPU 0 (NVIDIA H200) on hosta", True),
        ("GPU 1 (NVIDIA H200) on hosta", True),
        ("GPU 2 (NVIDIA H200) on hostb", True),
        ("GPU 0 (NVIDIA H200) on hostb", True),
    ]
    assert (lab.engines[0].pid, lab["x"][0]) == (first, 7)
    assert list(mgpu.spmd(world)) == [
        ["0", "4", "4", "0", "0"],
        ["1", "4", "4", "0", "1"],
        ["2", "4", "4", "0", "0"],
        ["3", "4", "4", "0", "1"],
    ]
    assert leased(machines["hosta"]) == [gpu_uuid(0), gpu_uuid(1)]
    assert leased(machines["hostb"]) == [gpu_uuid(0), gpu_uuid(2)]

    assert mgpu.parpool(2, name="lab") is lab

    wait_until(lambda: not leased(machines["hostb"]), 60, "the end of two leases")
    assert list(mgpu.spmd(world)) == [["0", "2", "2", "0", "0"], ["1", "2", "2", "0", "1"]]

    mgpu.parpool(3, name="lab")  # rank 2 is another one than before

    assert lab.engines[2].place == "GPU 2 (NVIDIA H200) on hostb"
    assert list(mgpu.spmd(lambda: mgpu.comm.all_reduce(1.0))) == [3.0] * 3


def test_gpus_of_others_are_named_and_what_works_is_not_ended(
    lab: Pool, ssh_hosts: Hosts, machines: dict[str, GpuMachine]
) -> None:
    first = lab.engines[0].pid
    other = describe(ssh_hosts, HostDescription("hostb", "hostb", gpus="2"))
    with mgpu.parpool(1, cluster=other, name="other"):
        with pytest.raises(SelectionError, match=r"3 more .* room for 2.*keeps its 1"):
            mgpu.parpool(4, name="lab")
        assert [engine.pid for engine in lab.engines] == [first]
        assert leased(machines["hosta"]) == [gpu_uuid(0)]

        mgpu.parpool(3, name="lab")

    assert lab.engines[2].place == "GPU 0 (NVIDIA H200) on hostb"
    lab.scatter("y", [1, 2, 3])
    with pytest.raises(SelectionError, match="rank 2 has y"):
        mgpu.parpool(2, name="lab")
    assert list(lab["y"]) == [1, 2, 3]


def test_other_options_and_places_are_refused(lab: Pool) -> None:
    with pytest.raises(SelectionError, match="Other options were asked for"):
        mgpu.parpool(2, name="lab", per_gpu=2)
    with pytest.raises(SelectionError, match="The cluster 'slurm' was asked for"):
        mgpu.parpool(2, name="lab", cluster="slurm")
    with pytest.raises(SelectionError, match="--gpus 1 was asked for"):
        mgpu.parpool(2, name="lab", gpus="1")
    assert lab.size == 1


def test_a_host_that_is_gone_is_named_unless_others_have_room(ssh_hosts: Hosts) -> None:
    one = [HostDescription(host, host, gpus="none", engines=1) for host in ("hosta", "hostb")]
    options = SshOptions(config=ssh_hosts.config, options=("-o", "ConnectTimeout=1"))
    short = ClusterDescription("lab", "ssh", hosts=tuple(one), options=options)
    here = HostDescription("here", "here", gpus="none", is_local=True)

    with (
        mgpu.parpool(1, cluster=short, name="short") as pool,
        mgpu.parpool(1, cluster=replace(short, hosts=(*one, here)), name="long") as other,
    ):
        ssh_hosts.b.cut()
        try:
            with pytest.raises(SelectionError, match=r"room for 0.*hostb: hostb cannot be reached"):
                mgpu.parpool(2, name="short")
            mgpu.parpool(2, name="long")
        finally:
            ssh_hosts.b.mend()

        assert [engine.host for engine in other.engines] == ["hosta", None]
        mgpu.parpool(2, name="short")
        assert [engine.host for engine in pool.engines] == ["hosta", "hostb"]


def test_cpu_engines_are_spread_evenly_also_on_this_machine(ssh_hosts: Hosts) -> None:
    here = HostDescription("here", "here", gpus="none", is_local=True)

    with mgpu.parpool(2, cluster=describe(ssh_hosts, here, cpus(ssh_hosts.a)), name="even") as pool:
        mgpu.parpool(5, name="even")
        places = list(mgpu.spmd(world))

        assert [engine.host for engine in pool.engines] == [None, "hosta", None, None, "hosta"]
    assert [place[4] for place in places] == ["0", "0", "1", "2", "1"]


def test_a_pool_grows_through_ssh_where_only_that_is_open(
    ssh_hosts: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ssh_hosts.hidden)
    far = [HostDescription(host, host, gpus="none", engines=1) for host in ("hosta", "hostb")]
    options = SshOptions(config=ssh_hosts.config, tunnel=True)
    cluster = ClusterDescription("lab", "ssh", hosts=tuple(far), options=options)

    with mgpu.parpool(1, cluster=cluster, name="tunnel") as pool:
        told = capsys.readouterr().out
        assert ("no collectives" in told, "hosta does not see" in told) == (True, True)
        assert "hostb" not in told
        mgpu.parpool(2, name="tunnel")
        told = capsys.readouterr().out
        assert ("no collectives" in told, "hosta" in told) == (False, False)
        assert "hostb does not see" in told
        assert [engine.host for engine in pool.engines] == ["hosta", "hostb"]
        assert list(mgpu.spmd(lambda: os.environ["WORLD_SIZE"])) == ["2", "2"]
        with pytest.raises(SelectionError, match="hosta: its description says engines = 1"):
            mgpu.parpool(3, name="tunnel")
