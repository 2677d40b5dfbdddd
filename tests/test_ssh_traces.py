"""What a pool over ssh shows on its hosts: no secret, no open port, one connection."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_hosts import ADDRESS, Host, Hosts, run

import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.pool import Pool
from notebooks import wait_until

pytestmark = pytest.mark.ssh


@pytest.fixture(scope="module")
def hosts(ssh_hosts: Hosts) -> tuple[Host, Host]:
    """Both hosts, with a folder of their own for what their programs put into /tmp elsewhere."""
    for host in (ssh_hosts.a, ssh_hosts.b):
        folder = host.folder / host.name / "tmp"
        folder.mkdir()
        host.environment = {**host.environment, "TMPDIR": str(folder)}
        host.kill_sshd()
        host.start_sshd()
    return ssh_hosts.a, ssh_hosts.b


def describe(hosts: tuple[Host, Host], **options: bool) -> ClusterDescription:
    """Two engines on hosta, one on hostb."""
    chosen = tuple(
        HostDescription(host.name, host.name, gpus="none", engines=number)
        for host, number in zip(hosts, (2, 1), strict=True)
    )
    config = SshOptions(config=hosts[0].folder / "config", **options)
    return ClusterDescription("lab", "ssh", hosts=chosen, options=config)


@pytest.fixture(scope="module")
def pool(hosts: tuple[Host, Host]) -> Iterator[Pool]:
    with mgpu.parpool(cluster=describe(hosts), name="traces") as opened:
        yield opened


def sockets(host: Host, *which: str) -> list[tuple[str, str]]:
    """List a host's own and other ends of TCP sockets, those within the host left out."""
    listed = run("ip", "netns", "exec", host.namespace, "ss", "--no-header", "-tn", *which)
    ends = [tuple(line.split()[-2:]) for line in listed.splitlines()]
    return [(own, other) for own, other in ends if not own.startswith("127.")]


def files(host: Host) -> list[Path]:
    # Unlike rglob, os.walk bears with a folder that goes meanwhile.
    found = os.walk(host.folder / host.name)
    paths = [Path(folder, name) for folder, _, names in found for name in names]
    return [path for path in paths if path.is_file()]


def test_each_host_has_one_connection_of_ssh(pool: Pool, hosts: tuple[Host, Host]) -> None:
    mgpu.spmd(os.getpid, pool=pool)

    for host in hosts:
        ends = sockets(host, "state", "established")
        assert [own for own, _ in ends].count(f"{host.address}:22") == 1
        assert all(other.startswith(f"{ADDRESS}:") for _, other in ends)


@pytest.mark.usefixtures("pool")
def test_engines_listen_nowhere(hosts: tuple[Host, Host]) -> None:
    for host in hosts:
        assert {own for own, _ in sockets(host, "-l")} == {f"{host.address}:22"}
    here = subprocess.check_output(["ss", "--no-header", "-tln"], text=True)
    own = {line.split()[-2].rpartition(":")[0] for line in here.splitlines()}
    assert own <= {ADDRESS, "127.0.0.1", "[::1]"}


def test_secrets_are_in_no_file_and_no_command_line(pool: Pool, hosts: tuple[Host, Host]) -> None:
    core = pool.owner._core
    secrets = [core._token, *core._far.keys.split()]

    for host in hosts:
        assert len(host.programs()) >= 2  # an engine and its guard
        texts = [path.read_bytes().decode(errors="replace") for path in files(host)]
        assert texts  # the logs of the ranks
        for text in [*texts, *host.programs().values()]:
            assert not any(secret in text for secret in secrets)


@pytest.mark.usefixtures("pool")
def test_nothing_goes_beside_ssh_where_it_is_to_carry_all(hosts: tuple[Host, Host]) -> None:
    def beside() -> set[tuple[str, str]]:
        ends = [end for host in hosts for end in sockets(host, "state", "established")]
        return {(own, other) for own, other in ends if not own.endswith(":22")}

    wait_until(lambda: len(beside()) == 9, 30, "the other pool's connections")
    before = beside()  # for each engine one, for its control one, for its guard one
    with mgpu.parpool(cluster=describe(hosts, tunnel=True), name="tunnel") as tunnel:
        mgpu.spmd(os.getpid, pool=tunnel)
        assert beside() == before


def test_no_file_is_left_when_pools_have_ended(hosts: tuple[Host, Host]) -> None:
    before = [set(files(host)) for host in hosts]

    with mgpu.parpool(cluster=describe(hosts), name="short"):
        assert all(set(files(h)) - old for h, old in zip(hosts, before, strict=True))

    def left() -> list[Path]:
        return [f for h, old in zip(hosts, before, strict=True) for f in set(files(h)) - old]

    wait_until(lambda: not left(), 60, "the end of all files")
