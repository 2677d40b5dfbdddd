"""Pools on hosts whose firewall lets only ssh through, which nobody has described."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from ssh_hosts import Host, Hosts, run

import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.errors import CollectiveError, OwnerError
from jupyter_mgpu.opening.ssh_engines import TUNNEL_ADDRESS

pytestmark = pytest.mark.ssh

LET_THROUGH, DROP = ("priority", "10"), ("priority", "20")


@contextlib.contextmanager
def only_ssh_open(host: Host) -> Iterator[None]:
    """Have what this process's host sends to another one lost, unless it goes to its sshd."""
    to = ("to", host.address)
    run("ip", "rule", "add", *LET_THROUGH, *to, "ipproto", "tcp", "dport", "22", "lookup", "main")
    run("ip", "rule", "add", *DROP, *to, "blackhole")
    try:
        yield
    finally:
        run("ip", "rule", "del", *LET_THROUGH, *to)
        run("ip", "rule", "del", *DROP, *to)


@pytest.mark.parametrize("closed", [("a", "b"), ("b",)])
def test_everything_goes_through_ssh_where_trying_finds_only_that_open(
    ssh_hosts: Hosts, closed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = tuple(
        HostDescription(host.name, host.name, gpus="none", engines=1)
        for host in (ssh_hosts.a, ssh_hosts.b)
    )
    cluster = ClusterDescription(
        "lab", "ssh", hosts=hosts, options=SshOptions(config=ssh_hosts.config)
    )
    with contextlib.ExitStack() as firewalls:
        for letter in closed:
            firewalls.enter_context(only_ssh_open(getattr(ssh_hosts, letter)))

        with mgpu.parpool(cluster=cluster, name="found") as pool:
            assert pool.owner.plan.rendezvous.addresses == (TUNNEL_ADDRESS,)
            assert list(mgpu.spmd(socket.gethostname)) == ["hosta", "hostb"]
            with pytest.raises(OwnerError, match="through ssh only"):
                _ = pool.client
            with pytest.raises(CollectiveError, match="through ssh only"):
                mgpu.spmd(lambda: mgpu.comm.all_reduce(1.0))

    assert "through ssh" in capsys.readouterr().out
