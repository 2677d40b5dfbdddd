"""By which interfaces the hosts of a group reach each other, tried before gloo and NCCL use them.

    one rank of each host             store               those of the other hosts
    opens a doorbell everywhere       its addresses  -->  try them all at once
    takes the first address that      what came      <--  of it
    all the others have reached       its interface  -->  the other ranks of this host

Hosts are told apart by their boot and their network, since names may be equal.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters import probe
from jupyter_mgpu.clusters.probe import Doorbell, is_loopback, own_addresses
from jupyter_mgpu.errors import CollectiveError
from jupyter_mgpu.on_engine.interfaces import CHOSEN_VARIABLE, interface_towards

TRY_S = 2.0
_silent: set[tuple[str, str]] = set()
"""Hosts with addresses of theirs that did not answer: each would cost the whole time again."""

Told = dict[str, Any]


def choose_interface(store: Any, rank: int, world_size: int) -> None:
    """Have gloo and NCCL use an interface by which all other hosts reach this one.

    All ranks of a group call it. Where the user has named an interface, that stays.

    Raises:
        CollectiveError: On all ranks, if there is none; it names the addresses that were tried.
    """
    if is_loopback(_owner_address()):
        return  # a pool of one host
    here = _identity()
    store.set(f"host/{rank}", here)
    if store.add(f"lead/{here}", 1) == 1:
        found = _lead(store, here, world_size)
        store.set(f"found/{here}", json.dumps(found))
    else:
        found = json.loads(store.get(f"found/{here}"))
    if found["error"]:
        _silent.clear()  # next time all are tried
        raise CollectiveError(found["error"])
    _silent.update((host, address) for host, address in found["silent"])
    if found["interface"]:
        os.environ.update(dict.fromkeys(_free_variables(), str(found["interface"])))


def _owner_address() -> str:
    """Return where the pool's store is: MASTER_ADDR, which a tutorial's cell may have set."""
    return os.environ["MGPU_STORE"].rpartition(":")[0]


def _identity() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').readlink()}"


def _free_variables() -> list[str]:
    return [name for name in os.environ.get(CHOSEN_VARIABLE, "").split(",") if name]


def _lead(store: Any, here: str, world_size: int) -> Told:
    keys = [f"host/{rank}" for rank in range(world_size)]
    hosts = sorted({host.decode() for host in store.multi_get(keys)})
    if len(hosts) == 1:
        return {"interface": None, "error": None, "silent": []}
    token = secrets.token_hex(8)
    with contextlib.closing(Doorbell(token)) as bell:
        told = {"name": os.uname().nodename, "port": bell.port, "token": token, "ways": _ways()}
        store.set(f"bell/{here}", json.dumps(told))
        bells = _read(store, "bell", hosts)
        store.set(f"reached/{here}", json.dumps(_try(bells, here)))
        reached = _read(store, "reached", hosts)  # from here on nobody needs the doorbells
    silent = [
        (host, address)
        for host, tried in reached[here].items()
        for address, trouble in tried.items()
        if trouble is not None
    ]
    errors = [_complain(host, bells, reached) for host in hosts]
    interface = next(iter(_common(here, bells, reached)), None)
    return {"interface": interface, "error": " ".join(filter(None, errors)), "silent": silent}


def _read(store: Any, what: str, hosts: Iterable[str]) -> dict[str, Told]:
    texts = store.multi_get([f"{what}/{host}" for host in hosts])
    return dict(zip(hosts, map(json.loads, texts), strict=True))


def _ways() -> list[tuple[str, str]]:
    """List interfaces with the address that gloo takes of each: the likely one first."""
    if not _free_variables():
        return []
    first: dict[str, str] = {}
    for name, address in own_addresses():  # IPv4 comes first
        if not is_loopback(address):
            first.setdefault(name, address)
    fixed = os.environ.get("MGPU_ADDRESS")
    likely = interface_towards(fixed or _owner_address())
    ways = sorted(first.items(), key=lambda way: way[0] != likely)
    return [way for way in ways if way[0] == likely] if fixed else ways


def _try(bells: Mapping[str, Told], here: str) -> dict[str, dict[str, str | None]]:
    """Try the addresses of all other hosts: for each, why not, or None."""
    targets = []
    for host, bell in bells.items():
        addresses = [address for _, address in bell["ways"]]
        hopeful = [each for each in addresses if (host, each) not in _silent] or addresses
        targets += [
            {"host": host, "address": each, "port": bell["port"], "token": bell["token"]}
            for each in hopeful
            if host != here
        ]
    troubles = probe.connect_all({"targets": targets, "timeout": TRY_S})
    tried: dict[str, dict[str, str | None]] = {host: {} for host in bells}
    for target, trouble in zip(targets, troubles, strict=True):
        tried[str(target["host"])][str(target["address"])] = trouble
    return tried


def _common(host: str, bells: Mapping[str, Told], reached: Mapping[str, Told]) -> list[str]:
    """Return the interfaces of a host by which all others reach it."""
    others = [other for other in bells if other != host]
    return [
        interface
        for interface, address in bells[host]["ways"]
        if all(reached[other][host].get(address, "silent") is None for other in others)
    ]


def _complain(host: str, bells: Mapping[str, Told], reached: Mapping[str, Told]) -> str | None:
    if not bells[host]["ways"] or _common(host, bells, reached):
        return None
    tried = [
        f"from {bells[other]['name']}: "
        + ", ".join(f"{address}: {trouble or 'it answers'}" for address, trouble in found.items())
        for other in bells
        if other != host and (found := reached[other][host])
    ]
    return (
        f"The other hosts do not reach {bells[host]['name']} at one of its addresses "
        f"({'; '.join(tried)}). Let the firewall pass connections between the hosts, or name the "
        "interface: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME."
    )
