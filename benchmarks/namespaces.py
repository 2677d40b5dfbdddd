"""Hosts for benches: network namespaces of this machine, which is one of them meanwhile."""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ADDRESS = "10.79.0.1"
"""Of the notebook's host, on all links."""
_CLONE_NEWNET = 0x40000000


def ip(*words: str) -> str:
    """Run the program of that name."""
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout


@contextlib.contextmanager
def hosts(number: int, delay_s: float = 0.0) -> Iterator[list[str]]:
    """Make hosts, each on a link of its own, and move this process to where all links begin.

    Args:
        number: How many hosts.
        delay_s: What a packet takes on a link, each way.

    Returns:
        The hosts' namespaces.
    """
    tag = f"mgb{os.getpid()}"
    with contextlib.ExitStack() as undo:
        here = _namespace(undo, f"{tag}n")
        ip("-n", here, "addr", "add", f"{ADDRESS}/32", "dev", "lo")
        names = []
        for place in range(1, number + 1):
            name = _namespace(undo, f"{tag}h{place}")
            _link(undo, here, name, place, delay_s)
            names.append(name)
        undo.enter_context(_inside(here))
        yield names


def _namespace(undo: contextlib.ExitStack, name: str) -> str:
    ip("netns", "add", name)
    undo.callback(ip, "netns", "del", name)
    ip("-n", name, "link", "set", "lo", "up")
    return name


def _link(undo: contextlib.ExitStack, here: str, there: str, place: int, delay_s: float) -> None:
    device = f"link{place}"
    if delay_s:
        script = Path(__file__).with_name("delayed_link.py")
        carrier = subprocess.Popen(
            [sys.executable, str(script), here, there, device, str(delay_s)],
            stdout=subprocess.PIPE,
            text=True,
        )
        undo.callback(carrier.wait)
        undo.callback(carrier.kill)
        if carrier.stdout is None or carrier.stdout.readline() != "ready\n":
            raise RuntimeError("The delayed link did not come up.")
    else:
        peer = ("peer", "name", device, "netns", there)
        ip("link", "add", device, "netns", here, "type", "veth", *peer)
    for namespace, end in ((here, 1), (there, 2)):
        ip("-n", namespace, "addr", "add", f"10.79.{place}.{end}/24", "dev", device)
        ip("-n", namespace, "link", "set", device, "up")
    ip("-n", there, "route", "add", "default", "via", f"10.79.{place}.1")


@contextlib.contextmanager
def _inside(namespace: str) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    with (
        Path("/proc/self/ns/net").open() as before,
        Path(f"/run/netns/{namespace}").open() as there,
    ):
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns", namespace)
        try:
            yield
        finally:
            libc.setns(before.fileno(), _CLONE_NEWNET)


def crossed_bytes(names: list[str]) -> int:
    """Count what has come to hosts by their links."""
    total = 0
    for place, name in enumerate(names, start=1):
        (device,) = json.loads(ip("-n", name, "-s", "-j", "link", "show", f"link{place}"))
        total += device["stats64"]["rx"]["bytes"]
    return total
