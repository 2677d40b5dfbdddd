"""Pools on hosts that are reached by ssh: namespaces of this machine, each with a real sshd."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from ssh_hosts import ADDRESS, Host, Hosts
from training import LEAST, difference, fit, mlp, samples

import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.errors import CollectiveError, EngineDiedError, OwnerError, PoolStartError
from jupyter_mgpu.pool import Pool
from notebooks import wait_until

pytestmark = pytest.mark.ssh


def describe(hosts: Hosts, *chosen: HostDescription, **options: object) -> ClusterDescription:
    """Describe a cluster of some hosts; of both by default, with one CPU engine each."""
    chosen = chosen or tuple(one_engine(host) for host in (hosts.a, hosts.b))
    return ClusterDescription(
        "lab", "ssh", hosts=chosen, options=SshOptions(config=hosts.config, **options)
    )


def one_engine(host: Host, **fields: object) -> HostDescription:
    return HostDescription(host.name, host.name, gpus="none", engines=1, **fields)


@contextlib.contextmanager
def opened(cluster: ClusterDescription, **options: object) -> Iterator[Pool]:
    pool = mgpu.parpool(cluster=cluster, **{"name": "ssh", **options})
    try:
        yield pool
    finally:
        pool.shutdown(wait_for_tasks=False)


def sum_over_ranks() -> float:
    """Add the numbers of all ranks, on each of them."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    value = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(value)
    return value.item()


@pytest.fixture(scope="module")
def _duo(ssh_hosts: Hosts) -> Iterator[Pool]:
    with opened(describe(ssh_hosts)) as pool:
        yield pool


@pytest.fixture
def duo(_duo: Pool) -> Iterator[Pool]:
    """Rank 0 on hosta and rank 1 on hostb, both idle."""
    wait_until(lambda: all(e.state == "idle" for e in _duo.engines), 60, "idle engines")
    yield _duo
    for future in _duo.tasks():
        future.cancel()


def test_engines_run_on_their_hosts_and_know_their_places(duo: Pool) -> None:
    def tell() -> list[str]:
        names = ("RANK", "MGPU_LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
        return [socket.gethostname(), *(os.environ[name] for name in names)]

    told = mgpu.spmd(tell)

    assert list(told) == [
        ["hosta", "0", "0", "0", ADDRESS, "eth0"],
        ["hostb", "1", "0", "1", ADDRESS, "eth0"],
    ]
    assert [engine.host for engine in duo.engines] == ["hosta", "hostb"]


@pytest.mark.usefixtures("duo")
def test_collectives_work_over_hosts() -> None:
    assert list(mgpu.spmd(sum_over_ranks)) == [1.0, 1.0]


def test_training_over_hosts_gives_the_network_of_one_device(duo: Pool) -> None:
    found = fit(mlp(), samples(), duo, max_epochs=5)

    assert len(found[1].steps) == 50
    assert difference(found, fit(mlp(), samples(), max_epochs=5)) < LEAST


def test_tasks_run_and_stop_and_the_group_works_again(duo: Pool) -> None:
    def wait_for_the_other() -> None:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        if os.environ["RANK"] == "0":
            dist.all_reduce(torch.ones(1))
        else:
            time.sleep(60)

    ended: list[BaseException] = []

    def run() -> None:
        try:
            mgpu.spmd(wait_for_the_other)
        except BaseException as error:  # noqa: BLE001 - looked at below
            ended.append(error)

    cell = threading.Thread(target=run)
    cell.start()
    wait_until(lambda: all(e.state == "busy" for e in duo.engines), 60, "busy engines")
    time.sleep(1)
    begun_s = time.monotonic()
    (task,) = duo.owner._core.scheduler.tasks.values()

    duo.owner.interrupt(task.id)

    cell.join(10)
    wait_until(lambda: all(e.state == "idle" for e in duo.engines), 10, "idle engines")
    assert time.monotonic() - begun_s < 3
    assert isinstance(ended[0], KeyboardInterrupt)
    assert [e.starts for e in duo.engines] == [0, 0]
    assert list(mgpu.spmd(sum_over_ranks)) == [1.0, 1.0]


def test_a_link_that_is_cut_for_three_seconds_loses_nothing(duo: Pool, ssh_hosts: Hosts) -> None:
    starts = [engine.starts for engine in duo.engines]
    slow = mgpu.parfeval_on_all(lambda: time.sleep(5) or os.environ["RANK"])

    ssh_hosts.b.cut()
    time.sleep(3)
    ssh_hosts.b.mend()

    assert [future.result(60) for future in slow] == ["0", "1"]
    assert [engine.starts for engine in duo.engines] == starts


def test_a_host_that_is_cut_off_is_named_frees_the_others_and_comes_back(
    duo: Pool, ssh_hosts: Hosts
) -> None:
    def wait_in_a_collective() -> None:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        if os.environ["RANK"] == "1":
            time.sleep(100)
        dist.all_reduce(torch.ones(1))

    mgpu.spmd(lambda: __import__("torch"))
    was = ssh_hosts.b.programs()
    begun: list[float] = []

    def cut() -> None:
        wait_until(lambda: all(e.state == "busy" for e in duo.engines), 60, "busy engines")
        time.sleep(1)
        ssh_hosts.b.cut()
        begun.append(time.monotonic())

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        with pytest.raises(EngineDiedError, match="hostb") as raised:
            mgpu.spmd(wait_in_a_collective)
        assert time.monotonic() - begun[0] < 15
        assert "rank 1" in str(raised.value)
        wait_until(lambda: duo.engines[0].state == "idle", 30, "rank 0, freed")
        wait_until(
            lambda: not set(was) & set(ssh_hosts.b.programs()),
            15 - (time.monotonic() - begun[0]) + 1,
            "the end of the old engine on its own host",
        )
    finally:
        cutter.join()
        ssh_hosts.b.mend()

    wait_until(lambda: duo.engines[1].state == "idle", 60, "an engine on the host that is back")
    assert duo.engines[0].starts == 0
    test_engines_run_on_their_hosts_and_know_their_places(duo)


def test_a_killed_engine_is_replaced_on_its_host(duo: Pool, tmp_path: Path) -> None:
    starts = duo.engines[1].starts
    killed = tmp_path / "killed"

    def kill() -> None:
        if os.environ["RANK"] == "1":
            killed.write_text(str(time.monotonic()))  # the clock of all hosts here
            os.kill(os.getpid(), 9)

    with pytest.raises(EngineDiedError, match=r"CPU on hostb.*SIGKILL"):
        mgpu.spmd(kill)

    assert time.monotonic() - float(killed.read_text()) < 2
    wait_until(lambda: duo.engines[1].starts > starts, 60, "the next engine")
    wait_until(lambda: duo.engines[1].state == "idle", 60, "the next engine, idle")
    assert duo.engines[1].starts == starts + 1
    test_engines_run_on_their_hosts_and_know_their_places(duo)


def test_engines_outlive_their_sshd_and_one_is_started_again_after_it(
    duo: Pool, ssh_hosts: Hosts
) -> None:
    starts = [engine.starts for engine in duo.engines]

    ssh_hosts.b.kill_sshd()

    assert list(mgpu.spmd(lambda: int(os.environ["RANK"]))) == [0, 1]
    assert [engine.starts for engine in duo.engines] == starts
    ssh_hosts.b.start_sshd()
    duo.restart([1])
    wait_until(lambda: duo.engines[1].starts > starts[1], 60, "a new engine")
    wait_until(lambda: duo.engines[1].state == "idle", 60, "a new engine, idle")


OWNER = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
import ctypes
import jupyter_mgpu as mgpu
hosts = tuple(HostDescription(n, n, gpus="none", engines=1) for n in ("hosta", "hostb"))
options = SshOptions(config=Path({config!r}))
pool = mgpu.parpool(cluster=ClusterDescription("lab", "ssh", hosts=hosts, options=options))
mgpu.spmd(lambda: __import__("subprocess").Popen(["sleep", "600"]) and None)
tasks = [mgpu.parfeval(lambda: ctypes.PyDLL(None).sleep(600)) for _ in range(2)]
while not all(task.state == "running" for task in tasks): time.sleep(.01)
print("BUSY", flush=True)
time.sleep(600)
"""


def test_nothing_is_left_on_any_host_when_the_kernel_is_killed(
    ssh_hosts: Hosts, tmp_path: Path
) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER.format(tests=str(Path(__file__).parent), config=str(ssh_hosts.config)))
    hosts = (ssh_hosts.a, ssh_hosts.b)
    before = [set(host.programs()) for host in hosts]
    owner = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        next(line for line in owner.stdout if line.startswith("BUSY"))

        def new() -> list[set[int]]:
            return [set(host.programs()) - old for host, old in zip(hosts, before, strict=True)]

        # What has started an engine may not have ended yet.
        wait_until(lambda: [len(pids) for pids in new()] == [3, 3], 30, "engine, guard and child")
        began = new()
        masters = [p.pid for p in psutil.Process(owner.pid).children() if p.name() == "ssh"]
    finally:
        owner.kill()
        owner.wait()

    def is_over() -> bool:
        left = [new & set(host.programs()) for host, new in zip(hosts, began, strict=True)]
        return not any(left) and not any(map(psutil.pid_exists, masters))

    assert len(masters) == 2
    wait_until(is_over, 15, "the end of everything on the hosts")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ssh": "10.77.0.99"}, ["cannot be reached", "10.77.0.99"]),
        ({"ssh": "nobody@hosta"}, ["refuses the login", "ssh-add"]),
        ({"python": "/nowhere/python"}, ["no /nowhere/python on hosta", "`python`"]),
        ({"folder": "/no/folder"}, ["working folder /no/folder is not there on hosta"]),
        ({"gpus": "0-3"}, ['On hosta: gpus = "0-3" was asked for', "Without gpus the engines"]),
        ({"python": "/usr/bin/true"}, ["/usr/bin/true on hosta cannot run engines"]),
    ],
)
def test_a_host_that_cannot_be_used_is_named_with_what_to_do(
    ssh_hosts: Hosts, fields: dict[str, str], words: list[str]
) -> None:
    host = replace(one_engine(ssh_hosts.a), **fields)

    with pytest.raises(PoolStartError) as raised:
        mgpu.parpool(cluster=describe(ssh_hosts, host), name="wrong")

    for word in words:
        assert word in str(raised.value)


def test_settings_of_collectives_reach_hosts_and_interfaces_do_not(
    ssh_hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"NCCL_DEBUG": "INFO", "UCX_TLS": "rc", "NCCL_SOCKET_IFNAME": "ib0"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    described = {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0,lo"}
    hosts = one_engine(ssh_hosts.a, environment=described), one_engine(ssh_hosts.b)

    with opened(describe(ssh_hosts, *hosts), name="settings"):
        seen = list(mgpu.spmd(lambda: [os.environ[name] for name in own]))

    assert seen == [["WARN", "rc", "eth0,lo"], ["INFO", "rc", "eth0"]]


def test_a_host_whose_key_is_not_known_is_refused(ssh_hosts: Hosts, tmp_path: Path) -> None:
    strange = tmp_path / "config"
    text = ssh_hosts.config.read_text()
    known = next(line for line in text.splitlines() if "UserKnownHostsFile" in line)
    strange.write_text(text.replace(known, "  UserKnownHostsFile /dev/null"))

    with pytest.raises(PoolStartError, match="not known to ssh"):
        mgpu.parpool(cluster=describe(replace(ssh_hosts, config=strange)), name="wrong")


def test_an_address_that_leads_nowhere_is_refused(ssh_hosts: Hosts) -> None:
    cluster = replace(describe(ssh_hosts), address="10.77.0.250")

    with pytest.raises(
        PoolStartError, match=r"hosta, hostb cannot connect .*\(10\.77\.0\.250: .*\)"
    ):
        mgpu.parpool(cluster=cluster, name="wrong")


def test_a_python_without_the_package_or_of_another_version_is_refused(
    ssh_hosts: Hosts, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)

    other = tmp_path / "other"
    (tmp_path / "jupyter_mgpu-9.9.dist-info").mkdir()
    metadata = tmp_path / "jupyter_mgpu-9.9.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: jupyter_mgpu\nVersion: 9.9\n")
    other.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    other.chmod(0o755)

    for python, words in (
        (bare, rf"jupyter_mgpu is .* here and missing on hosta.* Install .* for {bare} there"),
        (other, "jupyter_mgpu is .* here and 9.9 on hosta"),
    ):
        wrong = describe(ssh_hosts, one_engine(ssh_hosts.a, python=str(python)))
        with pytest.raises(PoolStartError, match=words):
            mgpu.parpool(cluster=wrong, name="wrong")


CLIENT = """
import os, socket, time
from pathlib import Path
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
import jupyter_mgpu as mgpu
hosts = tuple(HostDescription(n, n, gpus="none", engines=1) for n in ("hosta", "hostb"))
options = SshOptions(config=Path({config!r}))
cluster = ClusterDescription("lab", "ssh", hosts=hosts, options=options)
with mgpu.parpool(1, cluster=cluster) as pool:
    client = pool.client
    assert client.ids == [0]
    mgpu.parpool(2)
    assert pool.client.ids == [0, 1]
    assert client[:].apply_sync(socket.gethostname) == ["hosta", "hostb"]
    pool.restart([1])
    while not (pool.engines[1].starts == 1 and pool.engines[1].state == "idle"): time.sleep(.05)
    assert pool.client.ids == [0, 1]
    assert client[:].apply_sync(os.getpid) == [engine.pid for engine in pool.engines]
    mgpu.parpool(1)
    while client.ids != [0]: time.sleep(.05)
"""


def test_pool_client_reaches_all_hosts_also_after_a_replacement_and_another_size(
    ssh_hosts: Hosts,
) -> None:
    script = CLIENT.format(config=str(ssh_hosts.config))
    command = [sys.executable, "-c", script]  # this process has sockets outside of the namespace

    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr


def test_everything_goes_through_ssh_where_only_that_is_open(ssh_hosts: Hosts) -> None:
    with opened(describe(ssh_hosts, tunnel=True), name="tunnel") as pool:
        with pytest.raises(OwnerError, match="ports of their own"):
            _ = pool.client
        assert list(mgpu.spmd(socket.gethostname)) == ["hosta", "hostb"]
        with pytest.raises(CollectiveError, match="through ssh only"):
            mgpu.spmd(sum_over_ranks)
        ssh_hosts.b.cut()
        time.sleep(3)
        ssh_hosts.b.mend()
        assert list(mgpu.spmd(socket.gethostname)) == ["hosta", "hostb"]
        assert [engine.starts for engine in pool.engines] == [0, 0]


def test_engines_of_one_host_meet_where_only_ssh_is_open(ssh_hosts: Hosts) -> None:
    pair = replace(one_engine(ssh_hosts.a), engines=2)

    with opened(describe(ssh_hosts, pair, tunnel=True), name="pair"):
        assert list(mgpu.spmd(sum_over_ranks)) == [1.0, 1.0]


def test_a_pool_has_engines_here_and_elsewhere(ssh_hosts: Hosts) -> None:
    here = HostDescription("here", "here", gpus="none", engines=1, is_local=True)
    cluster = describe(ssh_hosts, here, one_engine(ssh_hosts.a))

    with opened(cluster, name="mixed") as pool:
        places = mgpu.spmd(
            lambda: [os.environ[name] for name in ("MGPU_LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR")]
        )
        total = mgpu.spmd(sum_over_ranks)

        assert [engine.host for engine in pool.engines] == [None, "hosta"]
        assert list(places) == [["0", "0", ADDRESS], ["0", "1", ADDRESS]]
        assert list(total) == [1.0, 1.0]
