"""The GPUs of this host that an allocation of Slurm grants, where no mask shows them.

`salloc` runs its command outside of all steps, where Slurm sets no CUDA_VISIBLE_DEVICES.
"""

import functools
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_mgpu.clusters.commands import ask
from jupyter_mgpu.devices import parse_gpus

ANSWER_TIMEOUT_S = 10.0
_ON_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPUS = re.compile(r"\bgpu(?::[^:,(]+)?:\d+\(IDX:([\d,-]+)\)")


@dataclass(frozen=True, slots=True)
class Grant:
    """What Slurm says of an allocation.

    Attributes:
        job: Its number.
        nodes: Where it is, as Slurm writes them; empty if Slurm did not say.
        numbers: Its GPUs on this host; None if this host is none of its nodes.
    """

    job: str
    nodes: str = ""
    numbers: tuple[int, ...] | None = None


def read_grant(environment: Mapping[str, str]) -> Grant | None:
    """Ask Slurm which GPUs of this host belong to this process.

    Returns:
        What it says; None outside allocations, and on nodes whose GPUs Slurm does not manage.
    """
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return None
    try:
        return _ask_once(job, environment.get("SLURM_CONF"))
    except (OSError, subprocess.SubprocessError):
        return Grant(job)


@functools.cache  # a pool that waits for GPUs looks again and again
def _ask_once(job: str, _configuration: str | None) -> Grant | None:
    parts = _ON_NODES.findall(_ask("scontrol", "show", "job", "--details", "--oneliner", job))
    nodes = ",".join(each for each, _ in parts)
    here = [(granted, managed) for each, granted in parts if (managed := _managed_here(each))]
    if not here:
        return Grant(job, nodes)
    if not any("gpu" in managed for _, managed in here):
        return None
    found = {
        number
        for granted, _ in here
        for part in _GPUS.findall(granted)
        for number in _numbers(part)
    }
    return Grant(job, nodes, tuple(sorted(found)))


def _managed_here(nodes: str) -> str | None:
    """Return what Slurm manages on this host, such as "gpu:4"; None if it is none of the nodes."""
    asked = ("sinfo", "--Node", "--noheader", f"--nodes={nodes}", "--Format=NodeHost:|,Gres:|")
    host = socket.gethostname().partition(".")[0]
    for line in _ask(*asked).splitlines():
        name, gres, _ = line.split("|")
        if name.partition(".")[0] == host:
            return gres
    return None


def _numbers(text: str) -> list[int]:
    return [number for number in parse_gpus(text) if isinstance(number, int)]


def _ask(*command: str) -> str:
    done = ask(command, ANSWER_TIMEOUT_S)
    done.check_returncode()
    return done.stdout
