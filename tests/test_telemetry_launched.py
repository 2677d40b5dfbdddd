"""Readings of the hosts of pools that Slurm or mpirun has started: real ones of both."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
from gpu_stubs import GpuMachine, gpu, gpu_uuid
from host_duo import REPORTER, until
from jupyter_servers import *  # noqa: F403 - fixtures
from slurm import two_nodes  # noqa: F401 - a fixture
from ssh_hosts import Hosts, mpi_over

import jupyter_mgpu as mgpu
from jupyter_mgpu import clusters
from jupyter_mgpu.clusters import SlurmOptions
from jupyter_mgpu.monitor import Snapshot
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.widgets.gpus_source import gpus_source
from notebooks import wait_until

GPUS = "\n".join([gpu(0, util=37), gpu(1)])


def samplers(pool: Pool) -> dict[str, list[psutil.Process]]:
    """Return the processes that read the pool's hosts, by host."""
    found: dict[str, list[psutil.Process]] = {}
    for engine in pool.engines:
        guard = psutil.Process(engine.pid).parent()
        here = [child for child in guard.children() if REPORTER in child.cmdline()]
        found.setdefault(engine.host, []).extend(here)
    return found


pytestmark = pytest.mark.usefixtures("own_runtime_folder")


@pytest.fixture(scope="module")
def slurm_pool(
    two_nodes: dict[str, str],  # noqa: F811 - the fixture
    gpu_machine: Callable[[str], GpuMachine],
) -> Iterator[Pool]:
    """Two ranks on each of two nodes, which show the same two GPUs: the engines use none."""
    spread = SlurmOptions(options=("--nodes=2", "--ntasks-per-node=2"))
    described = replace(clusters.find("slurm"), gpus="none", options=spread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", two_nodes["SLURM_CONF"])
        for name, value in gpu_machine(GPUS).items():
            patch.setenv(name, value)
        with mgpu.parpool(4, cluster=described, name="nodes") as pool:
            yield pool


@pytest.mark.slurm
@pytest.mark.usefixtures("looks_of_views")
def test_slurms_nodes_have_one_sampler_each_and_their_names_everywhere(slurm_pool: Pool) -> None:
    far = [("node1", 0), ("node1", 1), ("node2", 0), ("node2", 1)]

    def is_full(snapshot: Snapshot) -> bool:
        states = [(host.name, host.state) for host in snapshot.other_hosts]
        has_all = len([gpu for gpu in snapshot.gpus if gpu.host]) == 4
        return has_all and states == [("node1", "ok"), ("node2", "ok")]

    snapshot = until(is_full, "the GPUs of both nodes")

    assert [(g.host, g.index) for g in snapshot.gpus if g.host] == far
    assert snapshot.gpu(gpu_uuid(0), "node2").utilization_percent == 37
    assert {host: len(found) for host, found in samplers(slurm_pool).items()} == {
        "node1": 1,
        "node2": 1,
    }
    ranks = {(e.host, e.rank): e.pid for e in snapshot.engines if e.pool == "nodes"}
    assert ranks == {(e.host, e.rank): e.pid for e in slurm_pool.engines}
    assert [(row.host, row.index) for row in mgpu.gpu_table() if row.host] == far
    gpus = gpus_source()
    wait_until(lambda: len(gpus.state(100)["hosts"]) == 2, 60, "both nodes in a view")
    labels = [shown["label"] for shown in gpus.state(100)["gpus"] if "node" in shown["label"]]
    assert labels == [f"GPU {index} on {host}" for host, index in far]


@pytest.mark.slurm
def test_a_node_that_stops_reporting_turns_stale_alone(slurm_pool: Pool) -> None:
    until(lambda s: {h.state for h in s.other_hosts} == {"ok"}, "readings")
    (sampler,) = samplers(slurm_pool)["node2"]

    def is_alone(snapshot: Snapshot) -> bool:
        states = [snapshot.other_host(name).state for name in ("node1", "node2")]
        return states == ["ok", "stale"]

    sampler.suspend()
    try:
        stale = until(is_alone, "a stale node beside one that is read")
        command = [sys.executable, "-m", "jupyter_mgpu.cli", "gpus", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    finally:
        sampler.resume()

    assert {g.state for g in stale.gpus if g.host == "node2"} == {"stale"}
    shown = json.loads(done.stdout)
    assert {host["name"]: host["state"] for host in shown["other_hosts"]} == {
        "node1": "ok",
        "node2": "stale",
    }
    until(lambda s: s.other_host("node2").state == "ok", "new readings")


@pytest.mark.slurm
def test_the_sidebar_has_slurms_nodes(api: Any, slurm_pool: Pool) -> None:
    def is_there(shown: dict[str, Any]) -> dict[str, Any] | None:
        hosts = {row.get("hostname"): row.get("state") for row in shown["host"].values()}
        return shown if hosts.get("node1") == hosts.get("node2") == "ok" else None

    shown = api.wait_until(is_there)

    assert f"node1/{gpu_uuid(0)}" in shown["gpus"]
    assert [engine["host"] for engine in shown["engines"].values()] == [
        engine.host for engine in slurm_pool.engines
    ]
    assert shown["gpus"][f"node2/{gpu_uuid(0)}"]["label"] == "GPU 0 on node2"


@pytest.mark.mpi
@pytest.mark.ssh
def test_hosts_of_mpirun_are_read_and_turn_stale_when_they_are_cut_off(
    ssh_hosts: Hosts, gpu_machine: Callable[[str], GpuMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = gpu_machine(GPUS)
    variables = {name: machine[name] for name in ("LD_LIBRARY_PATH", "MGPU_STUB_SCENARIO")}
    cluster = replace(mpi_over(ssh_hosts, monkeypatch), gpus="none", environment=variables)

    with mgpu.parpool(4, cluster=cluster, name="mpi") as pool:

        def gpus_of(snapshot: Snapshot) -> list[str | None]:
            return [g.host for g in snapshot.gpus if g.host in ("hosta", "hostb")]

        snapshot = until(lambda s: len(gpus_of(s)) == 4, "the GPUs of both hosts")
        assert gpus_of(snapshot) == ["hosta", "hosta", "hostb", "hostb"]
        assert {h: len(found) for h, found in samplers(pool).items()} == {"hosta": 1, "hostb": 1}
        ssh_hosts.b.cut()
        try:
            stale = until(lambda s: s.other_host("hostb").state == "stale", "a stale host")
        finally:
            ssh_hosts.b.mend()
        assert stale.other_host("hosta").state == "ok"
