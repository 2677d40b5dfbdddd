"""A real Slurm on this machine, for tests: munged, slurmctld and one slurmd with GPUs in name only.

The programs are Debian's (`slurm-wlm`, `munge`), without systemd; root starts them.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
KillWait=5
InactiveLimit=0
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=8 RealMemory=2000 \
Gres=gpu:{num_gpus} State=UNKNOWN
PartitionName=gpu Nodes=node1 Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which srun and salloc talk to a cluster of one node with four GPUs."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing:
        pytest.skip(f"needs Slurm (apt-get install slurm-wlm munge); missing: {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("needs root, as which Slurm's daemons run here")
    folder = tmp_path_factory.mktemp("slurm")
    configuration = _write_configuration(folder, num_gpus=4)
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    pid_files = [folder / f"{name}.pid" for name in ("munged", "slurmctld", "slurmd")]
    try:
        _start(folder, environment)
        wait_until(lambda: _state(environment) == "idle", 60, "an idle node")
        yield environment
    finally:
        for file in reversed(pid_files):
            _end(file)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _write_configuration(folder: Path, num_gpus: int) -> Path:
    for name in ("state", "spool", "dev"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o400)
    for number in range(num_gpus):  # Slurm wants device files: these are like /dev/null
        subprocess.run(["mknod", folder / "dev" / f"nvidia{number}", "c", "1", "3"], check=True)
    files = f"{folder}/dev/nvidia[0-{num_gpus - 1}]"
    (folder / "gres.conf").write_text(f"NodeName=node1 Name=gpu File={files}\n")
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname().split(".")[0],
            controller_port=_free_port(),
            node_port=_free_port(),
            num_gpus=num_gpus,
        )
    )
    return configuration


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _start(folder: Path, environment: dict[str, str]) -> None:
    options = {
        "--key-file": "munge.key",
        "--socket": "munge.socket",
        "--pid-file": "munged.pid",
        "--log-file": "munged.log",
        "--seed-file": "munged.seed",
    }
    munge = [f"{option}={folder / file}" for option, file in options.items()]
    for command in (["munged", "--force", *munge], ["slurmctld", "-c"], ["slurmd", "-N", "node1"]):
        program = _program(command[0])
        subprocess.run([program, *command[1:]], check=True, env=environment, timeout=60)


def _state(environment: dict[str, str]) -> str:
    command = [_program("sinfo"), "--noheader", "--format=%t"]
    asked = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    return asked.stdout.strip()


def _end(pid_file: Path) -> None:
    """End a daemon that this file has started."""
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not is_alive(pid), 20, f"the end of {pid_file.stem}")
