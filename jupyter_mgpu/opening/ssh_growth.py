"""Plans engines that join a pool over ssh: on what its hosts have free now."""

import contextlib
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jupyter_mgpu import gpus as devices
from jupyter_mgpu.clusters import ClusterDescription, HostDescription
from jupyter_mgpu.clusters.commands import python_of
from jupyter_mgpu.errors import MgpuError, SelectionError
from jupyter_mgpu.gpus import Request
from jupyter_mgpu.opening.dividing import Offer, divide
from jupyter_mgpu.opening.far_plan import FarPlan
from jupyter_mgpu.opening.ssh_engines import TUNNEL_ADDRESS, Found, plan_shares, take_slots
from jupyter_mgpu.opening.ssh_plan import connection_to, offer_here, offer_of, wish_of
from jupyter_mgpu.owner.owner import Owner
from jupyter_mgpu.transport.host_reach import Asked, Reached, reach_each
from jupyter_mgpu.transport.launch_ssh import SshLauncher

NOTHING = Offer(0)


@dataclass(slots=True)
class _Site:
    """One host of a pool that is to grow.

    Attributes:
        has: How many engines of the pool run there.
        launcher: Starts engines there; None for this machine.
        reached: What the host has answered.
        offer: What it can give.
        why: Why it gives nothing.
    """

    host: HostDescription
    has: int
    launcher: SshLauncher | None
    reached: Reached | None = None
    offer: Offer = NOTHING
    why: str | None = None


def plan_more_over_ssh(request: Request, owner: Owner, description: ClusterDescription) -> FarPlan:
    """Ask the hosts of a pool what they have free, and plan further engines there.

    A host that does not answer, or has nothing, gives nothing: it is named if the others do not do.

    Args:
        request: How many further engines.
        owner: The pool's.
        description: Its cluster, as the pool was started on it.

    Raises:
        SelectionError: If the hosts have fewer; it says what each has, and why not more.
    """
    addresses, run_id = owner.plan.rendezvous.addresses, owner.plan.rendezvous.run_id
    with contextlib.ExitStack() as undo:
        sites = _sites(owner, description, undo)
        _ask(sites, request, description, addresses)
        numbers = divide([site.offer for site in sites], request.largest)
        if sum(numbers) < request.smallest:
            raise SelectionError(_too_few(request, sites, description, len(owner.engines)))
        shares = {site.host.name: number for site, number in zip(sites, numbers, strict=True)}
        found = {
            site.host.name: Found(
                site.host,
                site.reached,
                site.launcher,
                take_slots(site.reached, shares[site.host.name]),
                site.has,
            )
            for site in sites
            if site.reached is not None and site.launcher is not None
        }
        num_here = sum(site.has for site in sites if site.launcher is None)
        plan = plan_shares(request, description, found, shares, addresses, run_id, num_here)
        for site in sites:  # nobody would at the pool's end
            if site.launcher is not None and not site.has and not shares[site.host.name]:
                site.launcher.connection.close()
        return replace(plan, on_drop=undo.pop_all().close)


def _sites(
    owner: Owner, description: ClusterDescription, undo: contextlib.ExitStack
) -> list[_Site]:
    """Find what there is of the pool on each host; connections are made when they are used."""
    placements = [engine.plan.placement for engine in owner.engines.values()]
    has = Counter(None if place is None else place.host for place in placements)
    launchers = {place.host: place.launcher for place in placements if place is not None}
    sites = []
    for host in description.hosts:
        if host.is_local:
            sites.append(_Site(host, has[None], None))
            continue
        launcher = launchers.get(host.name)
        if not isinstance(launcher, SshLauncher):
            socket = owner.plan.folder / f"c{secrets.token_hex(4)}"
            connection = connection_to(host, description, socket)
            undo.callback(connection.close)
            is_tunnel = owner.plan.rendezvous.addresses == (TUNNEL_ADDRESS,)
            launcher = SshLauncher(connection, python_of(description, host), tunnel=is_tunnel)
        sites.append(_Site(host, has[host.name], launcher))
    return sites


def _ask(
    sites: Sequence[_Site],
    request: Request,
    description: ClusterDescription,
    addresses: tuple[str, ...],
) -> None:
    """Find out what the hosts can give, all at the same time."""
    asked: list[tuple[_Site, Asked]] = []
    for site in sites:
        if site.host.engines is not None and site.host.engines <= site.has:
            site.why = f"its description says engines = {site.host.engines}"
        elif site.launcher is None:
            try:
                site.offer = offer_here(request, site.host, None, site.has)
            except MgpuError as error:
                site.why = str(error)
        else:
            wish = {**wish_of(request, site.host), "n": None}
            if site.host.gpus != devices.NO_GPUS:  # of those that are named, any that is free
                wish |= {"gpus": None, "among": site.host.gpus}
            python = python_of(description, site.host)
            asked.append((site, Asked(site.launcher.connection, python, wish)))
    answers = reach_each([ask for _, ask in asked], addresses, Path.cwd())
    for (site, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, MgpuError):
            site.why = str(answer)
        elif not answer.ways and addresses != (TUNNEL_ADDRESS,):
            site.why = f"it cannot connect to where the engines of this pool meet ({answer.tried})"
        else:
            site.reached, site.offer = answer, offer_of(site.host, answer.slots, site.has)


def _too_few(
    request: Request, sites: Sequence[_Site], description: ClusterDescription, size: int
) -> str:
    room = sum(site.offer.room for site in sites)
    reasons = [f"{site.host.name}: {site.why.rstrip('.')}." for site in sites if site.why]
    cause = (
        f"{request.smallest} more engines were asked for, but the hosts of {description.name!r} "
        f"have room for {room}; the pool keeps its {size}."
    )
    return " ".join([cause, *reasons, "Ask for fewer, or again when there is more room."])
