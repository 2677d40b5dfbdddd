"""Plans engines whose hosts and GPUs a scheduler chooses."""

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jupyter_mgpu import cuda
from jupyter_mgpu.clusters import ClusterDescription, MpiOptions, SlurmOptions, probe
from jupyter_mgpu.clusters.commands import in_allocation, slurm_words
from jupyter_mgpu.errors import SelectionError
from jupyter_mgpu.gpus import Request
from jupyter_mgpu.on_engine import (
    interfaces,
    scheduled_gpus,
    sent_modules,
    warning_filters,
)
from jupyter_mgpu.opening.engine_plans import Say
from jupyter_mgpu.opening.far_plan import FarPlan
from jupyter_mgpu.owner.owner import Owner
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.rendezvous import LOOPBACK
from jupyter_mgpu.transport import slurm_queue
from jupyter_mgpu.transport.host_reach import candidates
from jupyter_mgpu.transport.launch_other import OtherLauncher
from jupyter_mgpu.transport.launch_slurm import SlurmLauncher
from jupyter_mgpu.transport.launch_steps import StepLauncher, mpirun, srun
from jupyter_mgpu.transport.placement import Launcher, Placement

START_TIMEOUT_S = 60.0

_TEMPLATE_LINE = "#SBATCH --gpus-per-task={gpus}"


def plan_scheduled_pool(
    request: Request, cluster: ClusterDescription, _folder: Path, say: Say
) -> FarPlan:
    """Plan engines that Slurm, MPI or another launcher of ipyparallel starts.

    Raises:
        SelectionError: For what a scheduler cannot be asked.
        ClusterError: If there is no such launcher.
    """
    size = _check(request, cluster)
    num_gpus = request.gpus_per_engine if _has_gpus(cluster) else 0
    return FarPlan(
        _plan(range(size), cluster, _launcher(size, cluster, num_gpus, say), num_gpus),
        addresses=(cluster.address,) if cluster.address else _own_addresses(_nodes(cluster)),
        run_id=uuid.uuid4().hex,
        sentences=() if num_gpus else (f"The engines of {cluster.name!r} run without GPUs.",),
    )


def plan_more_ranks(request: Request, owner: Owner, cluster: ClusterDescription) -> FarPlan:
    """Plan engines that join those of a pool which a scheduler has started.

    Args:
        request: How many further engines.
        owner: The pool's.
        cluster: Its cluster, as the pool was started on it.

    Raises:
        SelectionError: For what a scheduler cannot be asked.
    """
    ranks = range(request.first_rank, request.first_rank + _check(request, cluster))
    like = owner.engines[0].plan
    judge = like.judge if isinstance(like.judge, _Judge) else None
    launcher = like.placement.launcher if like.placement is not None else None
    engines = [replace(like, rank=rank) for rank in ranks]
    if judge is not None:
        device = _gpu_of(cluster)
        engines = [
            replace(plan, device=device, judge=replace(judge, rank=plan.rank)) for plan in engines
        ]

    def expect() -> None:
        """Let who starts and judges them know, in the owner's thread as all that they do."""
        if isinstance(launcher, StepLauncher):
            launcher.expect(ranks)
        if judge is not None:
            judge.forget(ranks.start)

    rendezvous = owner.plan.rendezvous
    return FarPlan(tuple(engines), rendezvous.addresses, rendezvous.run_id, on_turn=expect)


def _gpu_of(cluster: ClusterDescription) -> str:
    """Say what an engine runs on, until it is told which one that is."""
    return f"GPU of {cluster.name}"


def _has_gpus(cluster: ClusterDescription) -> bool:
    """Tell whether engines get GPUs; if nothing is said: of Slurm, or where this host has some."""
    if cluster.gpus is not None:
        return cluster.gpus != "none"
    is_like_this_host = isinstance(cluster.options, MpiOptions) and bool(probe.list_gpus()[0])
    return isinstance(cluster.options, SlurmOptions) or is_like_this_host


def _launcher(size: int, cluster: ClusterDescription, num_gpus: int, say: Say) -> Launcher:
    timeout_s = cluster.start_timeout_s or START_TIMEOUT_S
    options = cluster.options
    if isinstance(options, SlurmOptions):
        if options.submit == "srun" and not in_allocation():
            raise SelectionError(
                f'The cluster {cluster.name!r} has submit = "srun", but this notebook is in no '
                'allocation. Start it in one (salloc), or set submit = "sbatch".'
            )
        if options.submit == "sbatch" or not in_allocation():
            return SlurmLauncher(size, cluster, num_gpus, timeout_s, say)
        return StepLauncher(size, cluster, srun(num_gpus), timeout_s)
    if isinstance(options, MpiOptions):
        return StepLauncher(size, cluster, mpirun(options, cluster), timeout_s)
    return OtherLauncher(cluster)


def _nodes(cluster: ClusterDescription) -> list[str]:
    """List addresses of nodes on which engines may run, where somebody knows them."""
    options = cluster.options
    if not isinstance(options, SlurmOptions):
        return []
    if in_allocation():
        return slurm_queue.node_addresses(f"--nodes={os.environ['SLURM_JOB_NODELIST']}")
    return slurm_queue.node_addresses(*slurm_words(SlurmOptions(partition=options.partition)))


def _own_addresses(nodes: Iterable[str]) -> tuple[str, ...]:
    """Return this host's addresses: those on the way to the nodes first, loopback if alone."""
    ways = {interfaces.own_address_towards(node) for node in nodes}
    return tuple(sorted(candidates() or [LOOPBACK], key=lambda address: address not in ways))


def _check(request: Request, cluster: ClusterDescription) -> int:
    """Return how many engines are asked for, if a scheduler can be asked like that."""
    if not isinstance(request.n, int):
        raise SelectionError(
            f"The cluster {cluster.name!r} has no GPUs of its own to count. Say how many engines "
            f"to ask it for, as in %parpool 4 --cluster {cluster.name}."
        )
    refused = {
        "--per-gpu": request.per_gpu != 1,
        "--share": request.share,
        "--visible pool": request.visible != "own",
    }
    for option in (option for option, is_asked in refused.items() if is_asked):
        raise SelectionError(
            f"{option} was asked for, but the cluster {cluster.name!r} ({cluster.kind}) chooses "
            "the GPUs itself and shows each engine its own. Leave it out."
        )
    return request.n


def _plan(
    ranks: Sequence[int], cluster: ClusterDescription, launcher: Launcher, num_gpus: int
) -> tuple[EnginePlan, ...]:
    """Plan engines that one launcher starts.

    Args:
        ranks: Their ranks.
        cluster: The cluster.
        launcher: Starts them all.
        num_gpus: How many GPUs each of them gets.
    """
    environment = {
        **interfaces.settings_for_others(os.environ),
        **cluster.environment,
        scheduled_gpus.NUMBER_VARIABLE: str(num_gpus),
        warning_filters.VARIABLE: warning_filters.describe(),
        # Nobody knows before which hosts these are; one that sees the folder asks for nothing.
        sent_modules.VARIABLE: "sent",
    }
    if cluster.folder is not None:
        environment["MGPU_FOLDER"] = cluster.folder
    placement = Placement("", launcher)
    taken: dict[str, int] = {}
    return tuple(
        EnginePlan(
            rank=rank,
            device=_gpu_of(cluster) if num_gpus else "CPU",
            torch_device="cuda:0" if num_gpus else "cpu",
            environment=environment,
            judge=_Judge(rank, num_gpus, taken) if num_gpus else None,
            placement=placement,
        )
        for rank in ranks
    )


@dataclass(frozen=True, slots=True)
class _Judge:
    """Says whether an engine got GPUs of its own.

    Attributes:
        rank: The engine's rank.
        num_gpus: How many it is to have.
        taken: Which rank has which GPU, by UUID, for all engines of the pool.
    """

    rank: int
    num_gpus: int
    taken: dict[str, int]

    def forget(self, size: int) -> None:
        """Take note that the pool has so many ranks."""
        for gpu in [gpu for gpu, rank in self.taken.items() if rank >= size]:
            del self.taken[gpu]

    def __call__(self, answer: cuda.Answer) -> tuple[bool, str | None]:
        """Judge what CUDA shows the engine."""
        if answer.uuids is None:
            return False, None
        shown = ", ".join(answer.labels) or "none"
        if len(answer.uuids) != self.num_gpus:
            return False, (
                f"The engine of rank {self.rank} was to have GPUs of its own, {self.num_gpus} of "
                f"them, but CUDA shows it: {shown}. Ask for GPUs per task, as in {_TEMPLATE_LINE}, "
                'or set gpus = "none" for CPU engines.'
            )
        for gpu in [gpu for gpu, holder in self.taken.items() if holder == self.rank]:
            del self.taken[gpu]  # of the engine before
        others = {self.taken.setdefault(gpu, self.rank) for gpu in answer.uuids} - {self.rank}
        if others:
            return False, (
                f"{shown} was given to rank {self.rank} and to rank {others.pop()}. Ask for GPUs "
                f"per task, as in {_TEMPLATE_LINE}."
            )
        return True, None
