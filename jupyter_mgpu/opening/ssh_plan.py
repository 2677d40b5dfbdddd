"""Plans a pool over ssh: what each host has, which engines run there, and where they all meet."""

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jupyter_mgpu import gpus as devices
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.clusters.commands import python_of, ssh_arguments
from jupyter_mgpu.errors import PoolStartError, SelectionError
from jupyter_mgpu.gpus import Request
from jupyter_mgpu.opening.dividing import Offer, divide
from jupyter_mgpu.opening.engine_plans import Say
from jupyter_mgpu.opening.far_plan import FarPlan
from jupyter_mgpu.opening.ssh_engines import (
    TUNNEL_ADDRESS,
    Found,
    plan_shares,
    take_slots,
    wish_here,
)
from jupyter_mgpu.transport.host_reach import Asked, Reached, reach
from jupyter_mgpu.transport.launch_ssh import SshLauncher
from jupyter_mgpu.transport.ssh_connection import SshConnection, SshTarget


def plan_ssh_pool(
    request: Request, description: ClusterDescription, folder: Path, say: Say
) -> FarPlan:
    """Reach the hosts of a description, and plan the engines on them.

    Raises:
        HostUnreachableError: If a host does not answer.
        PoolStartError: If engines cannot run on one; it says why.
        SelectionError: If there are fewer engines than asked for.
    """
    options = description.options if isinstance(description.options, SshOptions) else SshOptions()
    far = [host for host in description.hosts if not host.is_local]
    with contextlib.ExitStack() as undo:
        asked = []
        for number, host in enumerate(far):
            connection = connection_to(host, description, folder / f"c{number}")
            undo.callback(connection.close)
            asked.append(Asked(connection, python_of(description, host), wish_of(request, host)))
        own = [description.address] if description.address else []
        answers = reach(asked, own, Path.cwd())
        addresses = _meeting_addresses(asked, answers, description, is_tunnel=options.tunnel)
        is_tunnel = addresses == (TUNNEL_ADDRESS,)
        names = [host.name for host in far]
        shares = _divide(request, description.hosts, dict(zip(names, answers, strict=True)))
        found = {
            host.name: Found(
                host,
                answer,
                SshLauncher(ask.connection, ask.python, tunnel=is_tunnel),
                take_slots(answer, shares[host.name]),
            )
            for host, ask, answer in zip(far, asked, answers, strict=True)
        }
        for host, ask in zip(far, asked, strict=True):
            if not shares[host.name]:
                ask.connection.close()  # nobody would at the pool's end
        run_id = uuid.uuid4().hex
        plan = plan_shares(request, description, found, shares, addresses, run_id, say=say)
        return replace(plan, on_drop=undo.pop_all().close)


def connection_to(
    host: HostDescription, description: ClusterDescription, socket: Path
) -> SshConnection:
    """Make the connection to a host, which is used later."""
    options = description.options if isinstance(description.options, SshOptions) else SshOptions()
    return SshConnection(SshTarget(host.name, host.ssh, tuple(ssh_arguments(options))), socket)


def wish_of(request: Request, host: HostDescription) -> dict[str, Any]:
    """Say what a host is asked for: all that it may give, since others may give less."""
    fields = ("per_gpu", "gpus_per_engine", "share", "visible", "pool")
    wish = {field: getattr(request, field) for field in fields}
    return {**wish, "n": host.engines, "gpus": host.gpus}


def _meeting_addresses(
    asked: Sequence[Asked],
    answers: Sequence[Reached],
    description: ClusterDescription,
    *,
    is_tunnel: bool,
) -> tuple[str, ...]:
    """Return the address of this machine that all hosts reach; several where none does for all."""
    if is_tunnel:
        return (TUNNEL_ADDRESS,)
    lost = [n for n, answer in enumerate(answers) if not answer.ways]
    if lost and description.address is not None:
        raise PoolStartError(
            f"{', '.join(asked[n].connection.target.host for n in lost)} cannot connect to this "
            f"machine ({answers[lost[0]].tried}), whose address the description gives. Correct "
            "it, open the way, or set `tunnel = true`."
        )
    if lost:
        return (TUNNEL_ADDRESS,)
    every = list(dict.fromkeys(way for answer in answers for way in answer.ways))
    common = [way for way in every if all(way in answer.ways for answer in answers)]
    return tuple(common[:1] or every)


def _divide(
    request: Request,
    hosts: Sequence[HostDescription],
    answers: Mapping[str, Reached],
) -> dict[str, int]:
    """Choose how many engines each host gets."""
    offers = [
        offer_of(host, answers[host.name].slots)
        if host.name in answers
        else offer_here(request, host, host.engines)
        for host in hosts
    ]
    numbers = divide(offers, request.largest)
    if sum(numbers) < request.smallest:
        total = sum(offer.room for offer in offers)
        each = ", ".join(
            f"{host.name}: {offer.room}" for host, offer in zip(hosts, offers, strict=True)
        )
        raise SelectionError(
            f"{request.smallest} engines were asked for, but the hosts have {total} ({each}). "
            "Ask for fewer, or set `engines` of the hosts in the cluster's description."
        )
    return {host.name: number for host, number in zip(hosts, numbers, strict=True)}


def offer_of(host: HostDescription, slots: Sequence[dict[str, Any]], has: int = 0) -> Offer:
    """Say what a host can give that has answered with its slots.

    Args:
        host: The host.
        slots: What its engines would get.
        has: How many of the pool it has already.
    """
    return _offer(host, len(slots), has, has_gpus=any(slot["uuids"] for slot in slots))


def offer_here(request: Request, host: HostDescription, number: int | None, has: int = 0) -> Offer:
    """Say what this machine can give, which may be asked for a number.

    Raises:
        SelectionError: If it has less.
    """
    choice = devices.choose(wish_here(request, host, number), takes_leases=False)
    return _offer(host, len(choice.slots), has, has_gpus=choice.has_gpus)


def _offer(host: HostDescription, num_slots: int, has: int, *, has_gpus: bool) -> Offer:
    if host.engines is None:
        return Offer(num_slots, not has_gpus, has)
    allowed = host.engines - has
    return Offer(min(num_slots, allowed) if has_gpus else allowed, has=has)
