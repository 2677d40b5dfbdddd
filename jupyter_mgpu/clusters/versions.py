"""Tells what is installed on a host, and compares it with another one of the pool."""

from collections.abc import Mapping
from typing import Any

from jupyter_mgpu.clusters.probe import versions

NEEDED = ("jupyter_mgpu", "ipyparallel", "ipykernel", "pyzmq", "cloudpickle")
PACKAGES = (*NEEDED, "torch")


def facts() -> dict[str, Any]:
    """Return what `compare` takes."""
    return versions(PACKAGES)


def compare(
    here: Mapping[str, Any], there: Mapping[str, Any], host: str
) -> tuple[list[str], list[str]]:
    """Compare the kernel's host with a host for engines.

    Args:
        here: The facts of the kernel's host, as the probe tells them.
        there: Those of the other one.
        host: Its name, for the sentences.

    Returns:
        Sentences on what keeps engines there from working, and on what differs and may stay so;
        both versions stand in each.
    """
    refused: list[str] = []
    told: list[str] = []
    if _release(here["python"]) != _release(there["python"]):
        refused.append(
            f"Python is {here['python']} here and {there['python']} on {host} "
            f"({there['executable']}): functions travel between equal minor versions only."
        )
    for package in PACKAGES:
        ours, theirs = here["packages"][package], there["packages"][package]
        if theirs is None and package in NEEDED:
            refused.append(f"{package} is {ours} here and missing on {host}.")
        elif theirs != ours:
            words = f"{package} is {ours or 'missing'} here and {theirs or 'missing'} on {host}."
            (refused if package == "jupyter_mgpu" else told).append(words)
    return refused, told


def differing_torch(hosts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Say which hosts have different releases of torch, whose collectives would not fit.

    Args:
        hosts: The facts of each host that engines run on.
    """
    found: dict[str, list[str]] = {}
    for host, facts in hosts.items():
        if (version := facts["packages"]["torch"]) is not None:
            found.setdefault(_release(version), []).append(f"{version} on {host}")
    if len(found) < 2:
        return None
    return f"torch is {', '.join(words for each in found.values() for words in each)}."


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])
