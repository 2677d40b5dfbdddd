"""Hosts for tests: network namespaces of this machine, two of them with their own sshd.

    notebook 10.77.0.1 --- bridge --- hosta 10.77.0.2      a link can be cut, an sshd be killed
                             |------- hostb 10.77.0.3

This process and what it starts is the notebook's host while the fixture is in use. Keys, known
hosts and configurations are in a folder of their own; nobody's ~/.ssh is touched.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from open_mpi import allow_open_mpi

from jupyter_mgpu import clusters
from jupyter_mgpu.clusters import ClusterDescription, MpiOptions
from notebooks import wait_until

_CLONE_NEWNET = 0x40000000
SSHD = "/usr/sbin/sshd"
PROGRAMS = (SSHD, "ssh", "ssh-keygen", "ip", "unshare")
ADDRESS = "10.77.0.1"


def why_not() -> str | None:
    """Say why there can be no hosts here; None where there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"missing: {', '.join(missing)} (openssh-server, openssh-client, iproute2)"
    if os.getuid() != 0:
        return "only root makes network namespaces"
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False
    )
    return f"no network namespace: {probe.stderr.strip()}" if probe.returncode else None


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def run(*command: str) -> str:
    """Run a program that must succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclass
class Host:
    """One host with an sshd.

    Attributes:
        environment: What sshd gives to all that it runs there.
    """

    name: str
    address: str
    namespace: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    sshd: subprocess.Popen | None = None

    def start_sshd(self) -> None:
        """Start the host's sshd, and wait until it answers."""
        variables = " ".join(f'"{name}={value}"' for name, value in self.environment.items())
        config = self.folder / f"{self.name}.sshd"
        config.write_text(
            f"ListenAddress {self.address}\nPort 22\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"HostKey {self.folder}/{self.name}.key\nAuthorizedKeysFile {self.folder}/user.pub\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nSubsystem sftp internal-sftp\nSetEnv {variables}\n"
        )
        # Mounts are its own there: see `ip netns exec`.
        inside = (
            f"mount -t tmpfs none {self.folder}/hidden; hostname {self.name}; "
            f"exec {SSHD} -D -f {config} -E {self.folder}/{self.name}.log"
        )
        self.sshd = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", inside],
            start_new_session=True,
        )
        wait_until(self._answers, 60, f"the sshd of {self.name}")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(0.5)
            return probe.connect_ex((self.address, 22)) == 0

    def kill_sshd(self) -> None:
        """Kill its sshd and all connections that it serves; engines live on."""
        for pid in self._pids():
            with contextlib.suppress(OSError):  # it has just ended
                if Path(f"/proc/{pid}/comm").read_text().strip() == "sshd":
                    os.kill(pid, signal.SIGKILL)
        if self.sshd is not None:
            self.sshd.wait(60)

    def _pids(self) -> list[int]:
        listed = run("ip", "netns", "pids", self.namespace)
        return [int(pid) for pid in listed.split()]

    def programs(self) -> dict[int, str]:
        """List what runs there beside sshd, by process."""
        found = {}
        for pid in self._pids():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command and "sshd" not in command:
                    found[pid] = command
        return found

    def cut(self) -> None:
        """Take its link down."""
        run("ip", "-n", self.namespace, "link", "set", "eth0", "down")

    def mend(self) -> None:
        """Bring its link up again."""
        run("ip", "-n", self.namespace, "link", "set", "eth0", "up")


@dataclass
class Hosts:
    """The hosts, and what ssh must be told to find them."""

    a: Host
    b: Host
    config: Path

    @property
    def hidden(self) -> Path:
        """A folder in which each host sees its own files only."""
        return self.config.parent / "hidden"


@pytest.fixture(scope="module")
def ssh_hosts() -> Iterator[Hosts]:
    """Two hosts with sshd; this process is a third one meanwhile."""
    reason = why_not()
    if reason is not None:
        if os.environ.get("MGPU_REQUIRE_SSH"):
            pytest.fail(reason)
        pytest.skip(reason)
    with open_hosts() as hosts:
        yield hosts


@contextlib.contextmanager
def open_hosts() -> Iterator[Hosts]:
    """Make two hosts, and this process a third one; all is gone afterwards."""
    with contextlib.ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="mgpu-ssh-"))
        undo.callback(shutil.rmtree, folder)
        tag = f"mgt{os.getpid()}"
        bridge = _namespace(undo, f"{tag}n")
        run("ip", "-n", bridge, "link", "add", "eth0", "type", "bridge")
        run("ip", "-n", bridge, "addr", "add", f"{ADDRESS}/24", "dev", "eth0")
        run("ip", "-n", bridge, "link", "set", "eth0", "up")
        hosts = [_host(undo, name, number, tag, folder) for number, name in enumerate("ab")]
        undo.enter_context(_inside(bridge))
        config = _configure(folder, hosts)
        for host in hosts:
            host.start_sshd()
            undo.callback(host.kill_sshd)
        yield Hosts(*hosts, config)


def _namespace(undo: contextlib.ExitStack, name: str) -> str:
    run("ip", "netns", "add", name)
    undo.callback(_remove_namespace, name)
    run("ip", "-n", name, "link", "set", "lo", "up")
    return name


def _remove_namespace(name: str) -> None:
    for pid in run("ip", "netns", "pids", name).split():
        if int(pid) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    run("ip", "netns", "del", name)


def _host(undo: contextlib.ExitStack, letter: str, number: int, tag: str, folder: Path) -> Host:
    name, address = f"host{letter}", f"10.77.0.{number + 2}"
    namespace = _namespace(undo, f"{tag}{letter}")
    run(
        *("ip", "link", "add", "eth0", "netns", namespace, "type", "veth"),
        *("peer", "name", f"to-{letter}", "netns", f"{tag}n"),
    )
    run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    run("ip", "-n", namespace, "link", "set", "eth0", "up")
    run("ip", "-n", f"{tag}n", "link", "set", f"to-{letter}", "master", "eth0", "up")
    environment = {}
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MGPU_LEASE_DIR", "MPLCONFIGDIR"):
        environment[variable] = str(folder / name / variable.lower())
        (folder / name / variable.lower()).mkdir(parents=True)
    environment["OMP_NUM_THREADS"] = "1"
    return Host(name, address, namespace, folder, environment)


@contextlib.contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """Move this thread, and all that it starts from now on, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (
        Path("/proc/self/ns/net").open() as before,
        Path(f"/run/netns/{namespace}").open() as there,
    ):
        assert libc.setns(there.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0


def _configure(folder: Path, hosts: list[Host]) -> Path:
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "hidden").mkdir()
    for name in ("user", *(f"{host.name}.key" for host in hosts)):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    known = [f"{host.address} {(folder / f'{host.name}.key.pub').read_text()}" for host in hosts]
    (folder / "known_hosts").write_text("".join(known))
    config = folder / "config"
    config.write_text(
        "".join(f"Host {host.name}\n  HostName {host.address}\n" for host in hosts)
        + f"Host *\n  User root\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    )
    return config


def mpi_over(hosts: Hosts, patch: pytest.MonkeyPatch) -> ClusterDescription:
    """Describe Open MPI on the two hosts, which it reaches by ssh."""
    allow_open_mpi(patch)
    hostfile = hosts.config.parent / "hosts"
    hostfile.write_text("hosta slots=2\nhostb slots=2\n")
    agent = ("--mca", "plm_rsh_agent", f"ssh -F {hosts.config}")
    options = ("--hostfile", str(hostfile), "--map-by", "node", *agent)
    return replace(clusters.find("mpi"), options=MpiOptions("mpirun", options))
