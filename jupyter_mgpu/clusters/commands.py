"""The commands by which a program is run on a host of a cluster."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from jupyter_mgpu.clusters.records import (
    ClusterDescription,
    HostDescription,
    MpiOptions,
    SlurmOptions,
    SshOptions,
)

CONNECT_TIMEOUT_S = 10
IMMEDIATE_S = 10
"""How long a look at a Slurm cluster waits in the queue."""


def ask(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program of this host for what it prints; it gets no input.

    Raises:
        OSError: If it cannot be started.
        TimeoutExpired: If it takes longer.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def ssh_words(options: SshOptions) -> list[str]:
    """Return ssh with its options: it never asks a person, and gives up after a while."""
    own = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
    return [*own, *ssh_arguments(options)]


def ssh_arguments(options: SshOptions) -> list[str]:
    """Return what the user has described for ssh, as its arguments."""
    config = ["-F", str(options.config)] if options.config is not None else []
    port = ["-p", str(options.port)] if options.port is not None else []
    return [*config, *port, *options.options]


def on_host(options: SshOptions, host: HostDescription, command: Sequence[str]) -> list[str]:
    """Return the command that runs another one on a host, through its login shell."""
    if host.is_local:
        return list(command)
    return [*ssh_words(options), "--", host.ssh, shlex.join(command)]


def slurm_words(options: SlurmOptions) -> list[str]:
    """Return the options of sbatch and srun."""
    named = {
        "--partition": options.partition,
        "--account": options.account,
        "--qos": options.qos,
        "--time": options.time,
    }
    given = [f"{option}={value}" for option, value in named.items() if value is not None]
    return [*given, *options.options]


def in_allocation() -> bool:
    """Tell whether this process has an allocation of Slurm."""
    return "SLURM_JOB_ID" in os.environ


def python_of(cluster: ClusterDescription, host: HostDescription | None = None) -> str:
    """Return the interpreter of a host: as it is described, else the kernel's own path."""
    return (host and host.python) or cluster.python or sys.executable


def probe_command(
    cluster: ClusterDescription, host: HostDescription | None, program: str
) -> list[str]:
    """Return the command that runs a Python program where an engine would run.

    Args:
        cluster: The cluster.
        host: The host; None where a scheduler chooses it.
        program: One line of Python.
    """
    python = [python_of(cluster, host), "-c", program]
    options = cluster.options
    if host is not None and isinstance(options, SshOptions):
        return on_host(options, host, python)
    if isinstance(options, SlurmOptions):
        place = ["--overlap"] if in_allocation() else slurm_words(options)
        gpus = [] if cluster.gpus == "none" else ["--gpus-per-task=1"]
        return ["srun", "--ntasks=1", f"--immediate={IMMEDIATE_S}", *place, *gpus, *python]
    if isinstance(options, MpiOptions):
        return [options.command, "-n", "1", *options.options, *python]
    return python
