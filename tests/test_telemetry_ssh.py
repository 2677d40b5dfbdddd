"""Readings of hosts that are reached by ssh: their names, and what a cut link does to them."""

from collections.abc import Callable, Iterator

import pytest
from gpu_stubs import GpuMachine, gpu, gpu_uuid
from host_duo import until
from ssh_hosts import Host, Hosts

import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.monitor import Snapshot
from jupyter_mgpu.pool import Pool
from notebooks import wait_until

pytestmark = pytest.mark.ssh


def one_engine(host: Host, machine: GpuMachine) -> HostDescription:
    """Describe a host with one CPU engine, and GPUs that nobody has chosen."""
    names = ("LD_LIBRARY_PATH", "MGPU_STUB_SCENARIO")
    variables = {name: machine[name] for name in names}
    return HostDescription(host.name, host.name, gpus="none", engines=1, environment=variables)


@pytest.fixture(scope="module")
def pool(ssh_hosts: Hosts, gpu_machine: Callable[[str], GpuMachine]) -> Iterator[Pool]:
    """Rank 0 on hosta and rank 1 on hostb; both hosts have a GPU 0, by the same UUID."""
    hosts = (
        one_engine(ssh_hosts.a, gpu_machine(gpu(0, util=11))),
        one_engine(ssh_hosts.b, gpu_machine(gpu(0, util=22))),
    )
    options = SshOptions(config=ssh_hosts.config)
    opened = mgpu.parpool(cluster=ClusterDescription("lab", "ssh", hosts=hosts, options=options))
    yield opened
    opened.shutdown(wait_for_tasks=False)


def are_read(snapshot: Snapshot) -> bool:
    """Tell whether both hosts are read, and their GPUs."""
    return (
        [host.state for host in snapshot.other_hosts]
        == ["ok"] * 2
        == [gpu.state for gpu in snapshot.gpus]
    )


def test_gpus_of_all_hosts_have_their_names_and_values(pool: Pool) -> None:
    snapshot = until(are_read, "the GPUs of both hosts")

    assert [(host.name, host.state) for host in snapshot.other_hosts] == [
        ("hosta", "ok"),
        ("hostb", "ok"),
    ]
    assert [(g.host, g.uuid, g.utilization_percent) for g in snapshot.gpus] == [
        ("hosta", gpu_uuid(0), 11),
        ("hostb", gpu_uuid(0), 22),
    ]
    pids = [engine.pid for engine in pool.engines]
    assert snapshot.engine(pids[0], "hosta").rank == 0
    assert snapshot.engine(pids[1], "hostb").rank == 1
    assert snapshot.engine(pids[0]) is None
    table = mgpu.gpu_table()
    assert [row.host for row in table] == ["hosta", "hostb"]


def test_a_host_whose_link_is_cut_turns_stale_and_comes_back(pool: Pool, ssh_hosts: Hosts) -> None:
    until(are_read, "the GPUs of both hosts")

    ssh_hosts.b.cut()
    try:
        stale = until(lambda s: s.gpu(gpu_uuid(0), "hostb").state == "stale", "a stale GPU")
    finally:
        ssh_hosts.b.mend()

    assert stale.other_host("hosta").state == "ok"
    assert stale.other_host("hostb").age_s >= 3
    assert stale.gpu(gpu_uuid(0), "hostb").utilization_percent == 22
    assert stale.gpu(gpu_uuid(0), "hosta").state == "ok"
    until(lambda s: s.gpu(gpu_uuid(0), "hostb").state == "ok", "new readings")
    assert [engine.starts for engine in pool.engines] == [0, 0]


def test_a_host_whose_engines_are_dead_is_lost_until_there_is_one_again(
    pool: Pool, ssh_hosts: Hosts
) -> None:
    until(are_read, "the GPUs of both hosts")

    ssh_hosts.b.cut()
    try:
        lost = until(lambda s: s.other_host("hostb").state == "lost", "a lost host")
    finally:
        ssh_hosts.b.mend()

    assert lost.other_host("hostb").trouble == "No engine runs on hostb any more."
    assert [(g.host, g.state) for g in lost.gpus] == [("hosta", "ok"), ("hostb", "lost")]
    wait_until(lambda: pool.engines[1].state == "idle", 60, "an engine on the host that is back")
    until(lambda s: s.other_host("hostb").state == "ok", "its readings")
