"""What is known of a cluster before anything is started on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

NATIVE_KINDS = ("local", "ssh", "slurm", "mpi")
"""The kinds that we know by themselves; any other one is the name of an ipyparallel launcher."""

BUILT_IN = "built in"
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HostDescription:
    """One host that engines run on.

    Attributes:
        name: What messages call it; unique in its cluster.
        ssh: What ssh is told to connect to: a host name, `user@host`, or a name of ssh_config.
        address: Where other hosts reach it; None to find out by trying.
        gpus: nvidia-smi's numbers, such as "0-3"; "none" for CPU engines; None for all there.
        engines: How many engines; None for one per GPU.
        python: The interpreter there; None for the path of the kernel's own.
        folder: The working folder there; None for the notebook's, where it exists, else the home.
        environment: Variables of the engines there.
        is_local: It is the kernel's own host, which needs no ssh.
    """

    name: str
    ssh: str
    address: str | None = None
    gpus: str | None = None
    engines: int | None = None
    python: str | None = None
    folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class SshOptions:
    """How hosts are reached.

    Attributes:
        config: An ssh_config file other than the user's own; jump hosts stand there.
        port: The port of sshd; None for what ssh_config says.
        tunnel: Only ssh is open between the hosts, so everything goes through it.
        options: Further arguments of ssh, such as "-o", "ConnectTimeout=5".
    """

    config: Path | None = None
    port: int | None = None
    tunnel: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What a job asks Slurm for.

    Attributes:
        partition: As in `#SBATCH --partition`; None for the cluster's default.
        account: Who pays.
        qos: The quality of service.
        time: The time limit, in Slurm's own notation ("2:00:00").
        options: Further lines of the job, such as "--constraint=h100".
        template: The text of the user's own batch script; None for ours.
        submit: "sbatch" for a job of its own, "srun" for a step of the allocation that the
            kernel is in, "auto" for srun inside an allocation and sbatch elsewhere.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    options: tuple[str, ...] = ()
    template: str | None = None
    submit: Literal["auto", "sbatch", "srun"] = "auto"


@dataclass(frozen=True, slots=True)
class MpiOptions:
    """How engines are started by MPI.

    Attributes:
        command: The program that starts ranks.
        options: Its options, such as "--hostfile", "hosts.txt".
    """

    command: str = "mpirun"
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LauncherOptions:
    """Settings of any other ipyparallel launcher.

    Attributes:
        settings: Its traits by name, such as {"queue": "gpu"}.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)


Options = SshOptions | SlurmOptions | MpiOptions | LauncherOptions


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """What `--cluster NAME` or `--profile NAME` stands for.

    Attributes:
        name: How the user calls it.
        kind: One of NATIVE_KINDS, or the name of an ipyparallel launcher (its entry point, or
            `package.module.Class`).
        hosts: The hosts in rank order, for kind ssh; empty where a scheduler chooses them.
        options: The kind's own options; None for kind local.
        gpus: As of a host; for kinds without hosts "own" gives each engine its own GPUs, "none"
            asks for none, None leaves that to the kind.
        python: The interpreter on the hosts; None for the path of the kernel's own.
        folder: The working folder there; None for the notebook's.
        environment: Variables of all engines.
        address: Where engines reach the kernel's host; None to find out by trying.
        start_timeout_s: How long the start may take, beside waiting in a queue; None for the
            pool's own.
        source: Where this was read: a file's path, a profile, or BUILT_IN.
    """

    name: str
    kind: str
    hosts: tuple[HostDescription, ...] = ()
    options: Options | None = None
    gpus: str | None = None
    python: str | None = None
    folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    start_timeout_s: float | None = None
    source: str = BUILT_IN

    @property
    def place(self) -> str:
        """Where to change it, for messages."""
        if self.source == BUILT_IN:
            return f"a table [{self.name}] of a clusters file"
        return self.source
