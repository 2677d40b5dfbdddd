"""Which addresses engines of other hosts use: found by trying, also where the first ones mislead.

The hosts are namespaces of this machine; see ssh_hosts.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from far_pools import Loopback, far_plan, far_pool
from ssh_hosts import ADDRESS, Host, Hosts, mpi_over, run
from test_ssh import sum_over_ranks

import jupyter_mgpu as mgpu
from jupyter_mgpu import curve
from jupyter_mgpu.clusters import ClusterDescription
from jupyter_mgpu.clusters.probe import Doorbell
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.errors import CollectiveError, MgpuError, PoolStartError
from jupyter_mgpu.on_engine import lifeline, owner_address
from jupyter_mgpu.opening import scheduled_plan
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.transport.placement import Placement

pytestmark = pytest.mark.ssh

LOST = "10.88.0.1"
"""An address of the notebook's host that leads from other hosts to nowhere, or to themselves."""
V6 = "fd77::"


def plans(hosts: Hosts) -> list[EnginePlan]:
    """Plan rank 0 on hosta and rank 1 on hostb."""
    return [
        far_plan(rank, Placement(host.name, _there(host)), HostPlace(0, 1, rank, 2))
        for rank, host in enumerate((hosts.a, hosts.b))
    ]


def _there(host: Host) -> Loopback:
    inside = ("ip", "netns", "exec", host.namespace, "unshare", "--uts", "sh", "-c")
    return Loopback(prefix=(*inside, f'hostname {host.name}; exec "$0" "$@"'))


@contextlib.contextmanager
def an_address(namespace: str, address: str, device: str = "eth0") -> Iterator[None]:
    """Give a host one more address."""
    nodad = ("nodad",) if ":" in address else ()
    run("ip", "-n", namespace, "addr", "add", address, "dev", device, *nodad)
    try:
        yield
    finally:
        run("ip", "-n", namespace, "addr", "del", address, "dev", device)


@pytest.fixture
def own(ssh_hosts: Hosts) -> str:
    """The notebook's namespace."""
    return ssh_hosts.a.namespace[:-1] + "n"


def meeting() -> tuple[str, str]:
    return os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"]


def test_an_address_that_does_not_lead_back_is_passed_over(ssh_hosts: Hosts, own: str) -> None:
    with contextlib.ExitStack() as undo:
        undo.enter_context(an_address(own, f"{LOST}/32"))
        # As docker0 has it on every host: it leads hostb to itself.
        undo.enter_context(an_address(ssh_hosts.b.namespace, f"{LOST}/32", "lo"))
        pool = undo.enter_context(far_pool(plans(ssh_hosts), address=(LOST, ADDRESS)))

        assert list(mgpu.spmd(meeting)) == [(ADDRESS, "eth0")] * 2
        assert list(mgpu.spmd(sum_over_ranks)) == [1.0, 1.0]
        port = pool.owner._core.plan.rendezvous.port
        with pytest.raises(ConnectionRefusedError):  # nothing listens where nobody needs it
            socket.create_connection((LOST, port), 5)


def test_hosts_that_share_no_address_of_this_one_meet_all_the_same(
    ssh_hosts: Hosts, own: str
) -> None:
    with contextlib.ExitStack() as undo:
        undo.enter_context(an_address(own, f"{LOST}/24"))
        undo.enter_context(an_address(ssh_hosts.a.namespace, "10.88.0.2/24"))
        undo.enter_context(an_address(ssh_hosts.a.namespace, f"{ADDRESS}/32", "lo"))
        undo.enter_context(far_pool(plans(ssh_hosts), address=(ADDRESS, LOST)))

        assert [address for address, _ in mgpu.spmd(meeting)] == [LOST, ADDRESS]
        assert list(mgpu.spmd(sum_over_ranks)) == [1.0, 1.0]


def test_an_error_names_all_addresses_that_were_tried(
    ssh_hosts: Hosts,
) -> None:
    bell = Doorbell("somebody else")
    port = bell.port
    tried = {
        owner_address.VARIABLE: f"{LOST},{ADDRESS},{ssh_hosts.b.address}",
        lifeline.URL_VARIABLE: f"tcp://{LOST}:{port}",
        curve.KEYS_VARIABLE: curve.make_keys().for_clients,
    }
    find = f"from jupyter_mgpu.on_engine import owner_address; owner_address.find({tried})"
    there = ("ip", "netns", "exec", ssh_hosts.a.namespace, sys.executable, "-c", find)

    with contextlib.closing(bell):
        done = subprocess.run(there, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert f"does not reach the notebook's host on port {port} ({LOST}: " in done.stderr
    assert f", {ADDRESS}: what answers there does not prove" in done.stderr
    assert f", {ssh_hosts.b.address}: Connection refused). Open a way" in done.stderr
    assert 'address = "ADDRESS"' in done.stderr


def test_ranks_take_the_interface_by_which_the_others_reach_them(ssh_hosts: Hosts) -> None:
    def crossing() -> str:
        os.environ["MASTER_ADDR"] = "127.0.0.1"  # as tutorials do
        sum_over_ranks()
        return os.environ["GLOO_SOCKET_IFNAME"]

    with contextlib.ExitStack() as undo:
        side = (ssh_hosts.a.namespace, ssh_hosts.b.namespace)
        _link(*side)
        undo.callback(run, "ip", "-n", side[0], "link", "del", "side0")
        # The ways between the hosts are closed on eth0, as a switch may do it; both reach the
        # notebook's host there.
        for host, other in ((ssh_hosts.a, ssh_hosts.b), (ssh_hosts.b, ssh_hosts.a)):
            route = ("unreachable", f"{other.address}/32")
            run("ip", "-n", host.namespace, "route", "add", *route)
            undo.callback(run, "ip", "-n", host.namespace, "route", "del", *route)
        undo.enter_context(far_pool(plans(ssh_hosts), address=ADDRESS))

        assert [name for _, name in mgpu.spmd(meeting)] == ["eth0", "eth0"]
        assert list(mgpu.spmd(crossing)) == ["side0", "side0"]


def test_ranks_that_do_not_reach_each_other_are_told_what_was_tried(ssh_hosts: Hosts) -> None:
    closed = ("unreachable", f"{ssh_hosts.b.address}/32")
    run("ip", "-n", ssh_hosts.a.namespace, "route", "add", *closed)
    try:
        with (
            far_pool(plans(ssh_hosts), address=ADDRESS),
            pytest.raises(CollectiveError) as caught,
        ):
            mgpu.spmd(sum_over_ranks)
    finally:
        run("ip", "-n", ssh_hosts.a.namespace, "route", "del", *closed)

    assert f"do not reach hostb at one of its addresses (from hosta: {ssh_hosts.b.address}: " in (
        str(caught.value)
    )


def _link(one: str, other: str) -> None:
    """Connect two hosts by a second link of their own."""
    link = ("ip", "link", "add", "side0", "netns", one, "type", "veth", "peer", "name", "side0")
    run(*link, "netns", other)
    for number, namespace in enumerate((one, other), start=2):
        run("ip", "-n", namespace, "addr", "add", f"10.66.0.{number}/24", "dev", "side0")
        run("ip", "-n", namespace, "link", "set", "side0", "up")


def test_hosts_that_have_ipv6_only_make_a_pool(ssh_hosts: Hosts, own: str) -> None:
    with contextlib.ExitStack() as undo:
        for number, namespace in enumerate(
            (own, ssh_hosts.a.namespace, ssh_hosts.b.namespace), start=1
        ):
            undo.enter_context(an_address(namespace, f"{V6}{number}/64"))
            run("ip", "-n", namespace, "addr", "del", f"10.77.0.{number}/24", "dev", "eth0")
            undo.callback(
                *(run, "ip", "-n", namespace, "addr", "add", f"10.77.0.{number}/24"),
                *("dev", "eth0"),
            )
        assert scheduled_plan._own_addresses([]) == (f"{V6}1",)
        pool = undo.enter_context(far_pool(plans(ssh_hosts), address=f"{V6}1"))

        assert list(mgpu.spmd(meeting)) == [(f"{V6}1", "eth0")] * 2
        assert list(mgpu.spmd(sum_over_ranks)) == [1.0, 1.0]
        with pytest.raises(MgpuError, match=f"need one IPv4 address .* but they use {V6}1"):
            pool.client  # noqa: B018 - ipyparallel knows no other


@pytest.fixture
def mpi(ssh_hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> ClusterDescription:
    return mpi_over(ssh_hosts, monkeypatch)


@pytest.mark.mpi
def test_mpirun_on_other_hosts_finds_the_way_back(mpi: ClusterDescription, own: str) -> None:
    with an_address(own, f"{LOST}/32"), mgpu.parpool(2, cluster=mpi, name="mpi") as pool:
        assert [engine.host for engine in pool.engines] == ["hosta", "hostb"]
        assert list(mgpu.spmd(meeting)) == [(ADDRESS, "eth0")] * 2
        assert list(mgpu.spmd(sum_over_ranks)) == [1.0, 1.0]


@pytest.mark.mpi
def test_mpirun_tells_of_the_addresses_that_were_tried(mpi: ClusterDescription, own: str) -> None:
    with an_address(own, f"{LOST}/32"):
        cluster = replace(mpi, address=LOST)

        with pytest.raises(PoolStartError, match=rf"does not reach .*\({LOST}: "):
            mgpu.parpool(2, cluster=cluster, name="mpi")
