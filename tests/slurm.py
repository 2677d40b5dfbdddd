"""A real Slurm on this machine, for tests: munged, slurmctld and slurmds with GPUs in name only.

The nodes share this machine and its stub of a driver, so GPU numbers count from 0 on each of them.
The programs are Debian's (`slurm-wlm`, `munge`), without systemd; root starts them.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from free_ports import free_port

from notebooks import is_alive, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc")
CONFIGURATION = """\
ClusterName=mgpu
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
KillWait=5
InactiveLimit=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""
NODE = """\
NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=2000 \
Gres=gpu:{num_gpus} State=UNKNOWN
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which srun and salloc talk to a cluster of one node with four GPUs."""
    with running(tmp_path_factory.mktemp("slurm"), {"node1": 4}) as environment:
        yield environment


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which one talks to a cluster of two nodes with two GPUs each."""
    with running(tmp_path_factory.mktemp("slurm"), {"node1": 2, "node2": 2}) as environment:
        yield environment


@contextlib.contextmanager
def running(folder: Path, nodes: dict[str, int], more: str = "") -> Iterator[dict[str, str]]:
    """Start a cluster of nodes with so many GPUs each, and more settings; and end it."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing:
        pytest.skip(f"needs Slurm (apt-get install slurm-wlm munge); missing: {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("needs root, as which Slurm's daemons run here")
    configuration = _write_configuration(folder, nodes)
    configuration.write_text(configuration.read_text() + more)
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    daemons = ["munged", "slurmctld", *(f"slurmd-{node}" for node in nodes)]
    try:
        _start(folder, environment, nodes)
        wait_until(lambda: _states(environment) == {"idle"}, 60, "idle nodes")
        yield environment
    finally:
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            _cancel_all(environment)
        for name in reversed(daemons):
            _end(folder / f"{name}.pid")


@contextlib.contextmanager
def without_controller(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Have the cluster's controller ended meanwhile, as while it is installed anew."""
    _end(folder / "slurmctld.pid")
    try:
        yield
    finally:
        subprocess.run([_program("slurmctld")], check=True, env=environment, timeout=60)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _write_configuration(folder: Path, nodes: dict[str, int]) -> Path:
    for name in ("state", "dev", *(f"spool-{node}" for node in nodes)):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o400)
    for number in range(max(nodes.values())):  # Slurm wants device files: these are as /dev/null
        subprocess.run(["mknod", folder / "dev" / f"nvidia{number}", "c", "1", "3"], check=True)
    host = socket.gethostname().split(".")[0]
    (folder / "gres.conf").write_text(
        "".join(
            f"NodeName={node} Name=gpu File={folder}/dev/nvidia[0-{num_gpus - 1}]\n"
            for node, num_gpus in nodes.items()
        )
    )
    described = [
        NODE.format(name=node, host=host, port=free_port(), num_gpus=num_gpus)
        for node, num_gpus in nodes.items()
    ]
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            folder=folder,
            host=host,
            controller_port=free_port(),
            nodes="".join(described),
        )
    )
    return configuration


def _start(folder: Path, environment: dict[str, str], nodes: Iterable[str]) -> None:
    options = {
        "--key-file": "munge.key",
        "--socket": "munge.socket",
        "--pid-file": "munged.pid",
        "--log-file": "munged.log",
        "--seed-file": "munged.seed",
    }
    munge = [f"{option}={folder / file}" for option, file in options.items()]
    slurmds = (["slurmd", "-N", node] for node in nodes)
    for command in (["munged", "--force", *munge], ["slurmctld", "-c"], *slurmds):
        program = _program(command[0])
        subprocess.run([program, *command[1:]], check=True, env=environment, timeout=60)


def _states(environment: dict[str, str]) -> set[str]:
    command = [_program("sinfo"), "--noheader", "--format=%t"]
    asked = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return set(asked.stdout.split())


def _cancel_all(environment: dict[str, str]) -> None:
    """End what tests that have failed left in the queue, since nobody else can later."""

    def ask(*command: str) -> str:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    ask("scancel", "--user=root")
    wait_until(lambda: not ask("squeue", "--noheader"), 60, "an empty queue")


def queue(fields: str = "%A %t %D") -> list[str]:
    """List the jobs of the cluster that SLURM_CONF leads to, one line each."""
    command = ["squeue", "--noheader", f"--format={fields}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _end(pid_file: Path) -> None:
    """End a daemon that this file has started."""
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not is_alive(pid), 60, f"the end of {pid_file.stem}")
