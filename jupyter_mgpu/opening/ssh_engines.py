"""Plans the engines of a pool over ssh, when it is known how many each host gets."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_mgpu import cuda
from jupyter_mgpu import gpus as devices
from jupyter_mgpu.clusters import ClusterDescription, HostDescription
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.gpus import Request
from jupyter_mgpu.leases import Claim
from jupyter_mgpu.on_engine import interfaces, remote_leases, sent_modules, warning_filters
from jupyter_mgpu.opening.engine_plans import Say, claims_of, plan_engines
from jupyter_mgpu.opening.far_plan import FarPlan
from jupyter_mgpu.opening.host_facts import UNSEEN
from jupyter_mgpu.output import notices
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.transport.host_reach import Reached
from jupyter_mgpu.transport.launch_ssh import SshLauncher
from jupyter_mgpu.transport.placement import Placement

TUNNEL_ADDRESS = "127.0.0.1"
APART = (
    "The hosts of this pool and the notebook's machine reach each other through ssh only, so there "
    "are no collectives between its ranks; tasks and cells without them run. Open the ways between "
    "the hosts, or use one of them."
)


@dataclass(frozen=True, slots=True)
class Found:
    """One host with what it has for the pool.

    Attributes:
        slots: What its engines get, one per engine.
        has: How many engines of the pool run there already.
    """

    host: HostDescription
    reached: Reached
    launcher: SshLauncher
    slots: Sequence[dict[str, Any]]
    has: int = 0


def wish_here(request: Request, host: HostDescription, number: int | None) -> Request:
    """Say what a pool asks of this machine."""
    if host.gpus == devices.NO_GPUS:
        return replace(request, n=number, gpus=host.gpus)
    return replace(request, n=number, gpus=None, among=host.gpus)


def take_slots(answer: Reached, number: int) -> Sequence[dict[str, Any]]:
    """Take so many of a host's slots; those of CPU engines are all the same."""
    return [answer.slots[min(place, len(answer.slots) - 1)] for place in range(number)]


def plan_shares(
    request: Request,
    description: ClusterDescription,
    found: Mapping[str, Found],
    shares: Mapping[str, int],
    addresses: tuple[str, ...],
    run_id: str,
    num_here: int = 0,
    say: Say = notices.say,
) -> FarPlan:
    """Plan so many engines on each host.

    Args:
        request: How, and which rank is the first.
        description: The cluster.
        found: The other hosts that get some.
        shares: How many each gets.
        addresses: Where they reach this machine; of several, each tries which do.
        run_id: Unique among pools.
        num_here: How many engines of the pool run on this machine already.
        say: Called with what the user should read while engines start.
    """
    engines: list[EnginePlan] = []
    claims: dict[int, Claim] = {}
    sentences: list[str] = []
    try:
        for group, host in enumerate(description.hosts):
            first_rank = request.first_rank + len(engines)
            plans: Sequence[EnginePlan]
            if host.is_local:
                has = num_here
                plans, own = _plan_here(request, host, shares[host.name], first_rank, has, say)
                claims |= own
            elif host.name in found:
                has = found[host.name].has
                plans = _plan_host(request, description, found[host.name], first_rank, run_id)
                sentences += _tell(found[host.name])
            else:
                continue
            size = has + len(plans)
            engines += [
                replace(plan, place=HostPlace(place, size, group, len(description.hosts)))
                for place, plan in enumerate(plans, start=has)
            ]
    except BaseException:
        for claim in claims.values():
            claim.drop()
        raise
    if addresses == (TUNNEL_ADDRESS,) and len(description.hosts) > 1:
        if not request.first_rank:
            sentences.append(APART)
        engines = [
            replace(plan, environment={**plan.environment, "MGPU_APART": APART}) for plan in engines
        ]
    return FarPlan(tuple(engines), addresses, run_id, tuple(sentences), claims)


def _tell(found: Found) -> list[str]:
    if found.has or not found.slots:
        return []  # that was told before, or is of no matter
    told = [f"{found.host.name}: {sentence}" for sentence in found.reached.sentences]
    if not found.reached.shares_files:
        told.append(UNSEEN.format(host=found.host.name))
    return told


def _plan_here(
    request: Request, host: HostDescription, number: int, first_rank: int, has: int, say: Say
) -> tuple[Sequence[EnginePlan], dict[int, Claim]]:
    """Plan engines of this machine itself, and lease their GPUs."""
    if number == 0:
        return (), {}
    choice = devices.choose(replace(wish_here(request, host, number), first_rank=first_rank))
    return plan_engines(choice, has + number, say), claims_of(choice)


def _plan_host(
    request: Request,
    description: ClusterDescription,
    found: Found,
    first_rank: int,
    run_id: str,
) -> list[EnginePlan]:
    threads = max(1, found.reached.num_cores // max(1, found.has + len(found.slots)))
    host = found.host
    common = {
        warning_filters.VARIABLE: warning_filters.describe(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        **interfaces.settings_for_others(os.environ),
        **description.environment,
        **host.environment,
    }
    if host.address is not None:
        common["MGPU_ADDRESS"] = host.address
    if folder := host.folder or description.folder:
        common["MGPU_FOLDER"] = folder
    if not found.reached.shares_files:
        common[sent_modules.VARIABLE] = "sent"
    plans = []
    for rank, slot in enumerate(found.slots, start=first_rank):
        environment = {**common, **slot["environment"]}
        if slot["uuids"]:
            wish: remote_leases.Wish = {
                "gpu_uuids": slot["uuids"],
                "rank": rank,
                "pool": request.pool,
                "run_id": run_id,
                "notebook": request.notebook,
                "shares": request.share,
            }
            environment[remote_leases.VARIABLE] = json.dumps(wish)
        plans.append(
            EnginePlan(
                rank=rank,
                device=slot["device"],
                torch_device=f"cuda:{slot['place']}" if slot["uuids"] else "cpu",
                environment=environment,
                gpu_uuids=tuple(slot["uuids"]),
                placement=Placement(host.name, found.launcher),
                judge=_judge(rank, host.name, slot) if slot["uuids"] else None,
            )
        )
    return plans


def _judge(
    rank: int, host: str, slot: Mapping[str, Any]
) -> Callable[[cuda.Answer], tuple[bool, str | None]]:
    """Make what compares the GPUs that CUDA shows on a host with those that it should show."""
    expected = tuple(cuda.bare_uuid(uuid) for uuid in slot["visible"])

    def judge(answer: cuda.Answer) -> tuple[bool, str | None]:
        if answer.uuids is None:
            return False, None
        if answer.uuids == expected:
            return True, None
        return False, (
            f"Rank {rank} should run on {slot['device']} of {host}, but CUDA shows it "
            f"{', '.join(answer.uuids) or 'no GPU'}. Look at the CUDA variables there."
        )

    return judge
