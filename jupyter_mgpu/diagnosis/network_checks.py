"""Checks of what collectives between hosts go through: InfiniBand, GPUDirect, settings of NCCL."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters.probe import infiniband_ports
from jupyter_mgpu.diagnosis.report import Check, Outcome, failed, passed, skipped
from jupyter_mgpu.nvml import Inventory

_INFINIBAND = Path("/sys/class/infiniband")
_MODULES = Path("/sys/module")
_NCCL_FILES = (Path("/etc/nccl.conf"), Path("~/.nccl.conf"))
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_SETTINGS = ("NCCL_", "GLOO_", "UCX_")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def check_infiniband() -> Check:
    """Look at the ports of InfiniBand and RoCE adapters."""
    check = judge_infiniband("InfiniBand", infiniband_ports(str(_INFINIBAND)))
    if check.outcome is Outcome.PASSED and os.environ.get("NCCL_IB_DISABLE") == "1":
        words = f"{check.finding.removesuffix('.')}, but NCCL_IB_DISABLE=1."
        return failed(check.name, words, "Unset NCCL_IB_DISABLE, and NCCL uses it.")
    return check


def judge_infiniband(name: str, ports: Sequence[Mapping[str, Any]]) -> Check:
    """Say what the ports of a host are good for, as `infiniband_ports` lists them."""
    if not ports:
        return skipped(name, "There is no adapter: collectives between hosts use TCP.")
    told = ", ".join(port["words"] for port in ports)
    if not any(port["is_active"] for port in ports):
        step = "Look at cables, switch and subnet manager; `ibstat` tells more."
        return failed(name, f"No port is active: {told}.", step)
    return passed(name, f"{told}.")


def check_gpudirect(inventory: Inventory) -> Check:
    """Look whether adapters reach the memory of GPUs without the host's."""
    name = "GPUDirect RDMA"
    if not inventory.gpus or not any(
        port["is_active"] for port in infiniband_ports(str(_INFINIBAND))
    ):
        return skipped(name, "It needs GPUs, and an active port of InfiniBand or RoCE.")
    loaded = [module for module in _PEER_MODULES if (_MODULES / module).is_dir()]
    if loaded:
        return passed(name, f"The kernel module {loaded[0]} is loaded.")
    return failed(
        name,
        "No kernel module for it is loaded, so that data of GPUs goes through the host's memory, "
        "unless the driver exports it by dma-buf.",
        "`sudo modprobe nvidia_peermem`; NCCL_DEBUG=INFO shows which way is taken (GDRDMA).",
    )


def check_settings() -> Check:
    """Look at the settings of NCCL, gloo and UCX, which engines take over."""
    name = "network settings"
    found = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(_SETTINGS)]
    files = [str(file) for file in map(Path.expanduser, _NCCL_FILES) if file.is_file()]
    told = ", ".join([*found, *files])
    there = {interface for _, interface in socket.if_nameindex()}
    for variable in _INTERFACES:
        missing = [each for each in _named(os.environ.get(variable, "")) if each not in there]
        if missing:
            return failed(
                name,
                f"{variable}={os.environ[variable]}, but the interfaces are: "
                f"{', '.join(sorted(there))}.",
                f"Correct or unset {variable}: collectives would fail at their first use.",
            )
    return passed(name, f"{told}." if told else "none: NCCL and gloo choose.")


def _named(interfaces: str) -> list[str]:
    """Return the interfaces that a setting names in full; NCCL also takes prefixes and `^`."""
    if interfaces.startswith("^"):
        return []
    exact = interfaces.startswith("=")
    there = [interface for _, interface in socket.if_nameindex()]
    names = [each.partition(":")[0] for each in interfaces.lstrip("=").split(",") if each]
    return [n for n in names if exact or not any(each.startswith(n) for each in there)]


def checks_of_network(inventory: Inventory) -> list[tuple[str, Callable[[], Check]]]:
    """List the checks with their names, none of them run yet."""
    return [
        ("InfiniBand", check_infiniband),
        ("GPUDirect RDMA", lambda: check_gpudirect(inventory)),
        ("network settings", check_settings),
    ]
