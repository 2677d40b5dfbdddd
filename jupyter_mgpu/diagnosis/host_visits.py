"""Checks of one host of a cluster, from what the probe tells of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu.clusters import ClusterDescription, HostDescription
from jupyter_mgpu.clusters.probing import Probe, ProbeError
from jupyter_mgpu.clusters.versions import compare
from jupyter_mgpu.devices import parse_gpus
from jupyter_mgpu.diagnosis.network_checks import judge_infiniband
from jupyter_mgpu.diagnosis.report import Check, failed, passed, skipped

CONNECT_TIMEOUT_S = 3.0
LARGEST_CLOCK_DIFFERENCE_S = 5.0

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Visit:
    """A host that has answered.

    Attributes:
        name: What messages call it.
        host: Its description; None where a scheduler has chosen it.
        probe: Runs there.
        facts: What it told.
        away_s: How far its clock is from ours, at least; 0 within the time that asking took.
        token: What its listener answers.
    """

    name: str
    host: HostDescription | None
    probe: Probe
    facts: Facts
    away_s: float
    token: str

    def addresses(self) -> list[str]:
        """Return where others may reach it, the described address alone if there is one."""
        if self.host is not None and self.host.address is not None:
            return [self.host.address]
        return list(self.facts["addresses"])


def utc_s() -> float:
    """Return the time in seconds, as the probe does."""
    return datetime.now(UTC).timestamp()


def clock_difference_s(told: float, asked: float, answered: float) -> float:
    """Return by how much a clock is off, beyond what the time of asking may explain."""
    return max(asked - told, told - answered, 0.0)


def checks_of_visit(cluster: ClusterDescription, here: Visit, there: Visit) -> list[Check]:
    """Check what a host has told, and the connections both ways."""
    return [
        _check_python(cluster, here.facts, there),
        _check_gpus(cluster, there),
        *_check_ports(cluster, here, there),
        judge_infiniband(f"{there.name}: InfiniBand", there.facts["infiniband"]),
        _check_folder(cluster, there),
        _check_clock(there),
    ]


def _check_python(cluster: ClusterDescription, here: Facts, there: Visit) -> Check:
    name = f"{there.name}: versions"
    refused, told = compare(here, there.facts, there.name)
    python = there.facts["executable"]
    if not refused:
        equal = f"Python {there.facts['python']} ({python}) and the packages fit."
        return passed(name, " ".join([equal, *told]))
    install = f"`{python} -m pip install jupyter_mgpu=={here['packages']['jupyter_mgpu']}` there"
    return failed(
        name,
        " ".join([*refused, *told]),
        f"Install what fits ({install}), or name another interpreter: python = "
        f'"/path/to/python" for {there.name} in {cluster.place}.',
    )


def _check_gpus(cluster: ClusterDescription, there: Visit) -> Check:
    name = f"{there.name}: GPUs"
    wanted = there.host.gpus if there.host is not None else cluster.gpus
    gpus = there.facts["gpus"]
    found = ", ".join(f"{gpu['index']} {gpu['name']}" for gpu in gpus) or "none"
    if wanted == "none":
        return skipped(name, "CPU engines are asked for.")
    if wanted is not None:
        have = {gpu["index"] for gpu in gpus}
        uuids = [gpu["uuid"].lower() for gpu in gpus]
        missing = [
            str(each)
            for each in parse_gpus(wanted)
            if each not in have
            and not (isinstance(each, str) and any(u.startswith(each.lower()) for u in uuids))
        ]
        # The MIG devices of a GPU are not listed by the probe.
        missing = [each for each in missing if not each.lower().startswith("mig-")]
        if missing:
            why = f" ({there.facts['gpu_trouble']})" if there.facts["gpu_trouble"] else ""
            return failed(
                name,
                f"{', '.join(missing)} of gpus = {wanted!r} are not there, but: {found}{why}.",
                f"Correct gpus for {there.name} in {cluster.place}.",
            )
    if not gpus:
        return skipped(name, f"{there.facts['gpu_trouble']}: its engines would be CPU engines.")
    mask = there.facts["mask"]
    return passed(name, f"{found}{f'; CUDA_VISIBLE_DEVICES={mask}' if mask else ''}.")


def _check_ports(cluster: ClusterDescription, here: Visit, there: Visit) -> list[Check]:
    if cluster.kind == "local" or (there.host is not None and there.host.is_local):
        return []
    ours = [cluster.address] if cluster.address else here.addresses()
    name = f"{there.name}: ports"
    if getattr(cluster.options, "tunnel", False):
        return [skipped(name, "tunnel = true: everything goes through ssh.")]
    return [
        _check_way(there, here, ours, name, "this host", 'address = "ADDRESS" for the cluster'),
        _check_way(
            here,
            there,
            there.addresses(),
            name,
            there.name,
            f'address = "ADDRESS" for {there.name}',
        ),
    ]


def check_between(one: Visit, other: Visit) -> Check:
    """Check the way from one host with engines to another, which collectives take."""
    return _check_way(
        one,
        other,
        other.addresses(),
        f"{one.name}: ports",
        other.name,
        f'address = "ADDRESS" for {other.name}',
    )


def _check_way(
    source: Visit, target: Visit, addresses: list[str], name: str, called: str, setting: str
) -> Check:
    targets = [
        {"address": address, "port": target.facts["port"], "token": target.token}
        for address in addresses
    ]
    try:
        results = source.probe.ask(
            "connect", 4 * CONNECT_TIMEOUT_S, targets=targets, timeout=CONNECT_TIMEOUT_S
        )
    except ProbeError as error:
        return failed(name, str(error), "Check again; if it stays so, look at the host's load.")
    tried = list(zip(addresses, results, strict=True))
    good = [address for address, trouble in tried if trouble is None]
    bad = ", ".join(f"{address}: {trouble}" for address, trouble in tried if trouble is not None)
    if good:
        return passed(name, f"{source.name} reaches {called} at {', '.join(good)}.")
    return failed(
        name,
        f"{source.name} does not reach {called} (port {target.facts['port']}; {bad}).",
        f"Let the firewall pass connections between these hosts, or say which address to use: "
        f"{setting}; where ssh alone is open: tunnel = true.",
    )


def _check_folder(cluster: ClusterDescription, there: Visit) -> Check:
    name = f"{there.name}: folder"
    folder = (there.host or cluster).folder or "The home"
    if not there.facts["has_folder"]:
        return failed(
            name, f"{folder} is not there.", f"Make it, or correct folder for {there.name}."
        )
    if there.facts["is_shared"] is None:
        return skipped(name, "The working folder here cannot be written, so nothing was tried.")
    if there.facts["is_shared"]:
        return passed(name, "This working folder is there as well, under the same path.")
    return passed(
        name,
        "This working folder is not there: modules next to the notebook are sent, data is not.",
    )


def _check_clock(there: Visit) -> Check:
    name = f"{there.name}: clock"
    if there.away_s <= LARGEST_CLOCK_DIFFERENCE_S:
        return passed(name, "It agrees with this host's.")
    return failed(
        name,
        f"It differs by {there.away_s:.0f} s from this host's.",
        "Start a time service there (chrony, systemd-timesyncd): logs and files would mislead.",
    )
