"""Reaches the hosts of a pool: connects, asks what is there, finds out which way leads back."""

import contextlib
import secrets
import shlex
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters.probe import BOOTSTRAP, Doorbell, is_loopback, own_addresses
from jupyter_mgpu.clusters.probing import answers, script
from jupyter_mgpu.clusters.versions import PACKAGES, compare, facts
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import PoolStartError
from jupyter_mgpu.gpus.offer import offer
from jupyter_mgpu.transport.folder_mark import marked
from jupyter_mgpu.transport.ssh_connection import SshConnection

CONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One host, and what to ask it.

    Attributes:
        connection: Leads to it.
        python: The interpreter there.
        request: The fields of a `Request` for its GPUs.
    """

    connection: SshConnection
    python: str
    request: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reached:
    """What a host has answered.

    Attributes:
        ways: The addresses of this machine that lead from there to here, the best one first.
        tried: All that were tried, as words, with what came of each that does not.
        shares_files: Whether the notebook's folder is the same there.
        num_cores: How many cores may be kept busy there.
        slots: What its engines would get, one per engine.
        sentences: What the user should be told.
    """

    ways: tuple[str, ...]
    tried: str
    shares_files: bool
    num_cores: int
    slots: list[dict[str, Any]]
    sentences: list[str]


def reach(hosts: Sequence[Asked], addresses: Sequence[str], folder: Path) -> list[Reached]:
    """Connect to hosts and ask them as `reach_each` does, and fail with the first that fails."""
    found = []
    for answer in reach_each(hosts, addresses, folder):
        if isinstance(answer, PoolStartError):
            raise answer
        found.append(answer)
    return found


def reach_each(
    hosts: Sequence[Asked], addresses: Sequence[str], folder: Path
) -> list[Reached | PoolStartError]:
    """Connect to hosts and ask them, all at the same time.

    Args:
        hosts: The hosts.
        addresses: Those of this machine that they may use; none to try all it has.
        folder: The notebook's folder.

    Returns:
        For each what it answers, or the error: HostUnreachableError if it does not, PoolStartError
        if engines cannot run there; it says why and what to do.
    """
    nonce = secrets.token_hex(16)
    addresses = addresses or candidates()
    with contextlib.closing(Doorbell(nonce)) as bell, marked(folder, nonce) as file:
        look = {"op": "look", "packages": PACKAGES, "token": "", "file": str(file)}
        requests = (
            {**look, "content": nonce, "folder": None},
            {
                "op": "connect",
                "targets": [{"address": a, "port": bell.port, "token": nonce} for a in addresses],
                "timeout": CONNECT_S,
            },
        )
        asking = [
            call_in_thread(lambda host=host: _ask(host, requests, addresses), "mgpu-probe")  # type: ignore[misc]
            for host in hosts
        ]
        return [_outcome(answer) for answer in asking]


def _outcome(asked: "Future[Reached]") -> Reached | PoolStartError:
    try:
        return asked.result()
    except PoolStartError as error:
        return error


def candidates() -> list[str]:
    """List this machine's addresses that others might reach."""
    return [address for _, address in own_addresses() if not is_loopback(address)]


def _ask(host: Asked, requests: Sequence[dict[str, Any]], addresses: Sequence[str]) -> Reached:
    name = host.connection.target.host
    call = {"op": "call", "module": offer.__module__, "function": offer.__name__}
    text = script(*requests, {**call, "arguments": [host.request]})
    done = host.connection.run([shlex.join([host.python, "-c", BOOTSTRAP])], text)
    there, troubles, offered = [*answers(done.stdout), None, None, None][:3]
    if there is None:
        raise _explain(name, host.python, done.stderr)
    refused, told_versions = compare(facts(), there, name)
    if refused:
        step = f"Install the same version for {host.python} there."
        raise PoolStartError(f"{' '.join(refused)} {step}")
    if offered is None:
        raise _explain(name, host.python, done.stderr)
    if "refusal" in offered:
        raise PoolStartError(f"On {name}: {_as_described(offered['refusal'], host.request)}")
    tried = dict(zip(addresses, troubles, strict=True))
    ways = [address for address, trouble in tried.items() if trouble is None]
    words = [f"{address}: {trouble or 'it answers'}" for address, trouble in tried.items()]
    return Reached(
        ways=tuple(sorted(ways, key=lambda way: way != there["caller"])),
        tried=", ".join(words),
        shares_files=bool(there["is_shared"]),
        num_cores=offered["num_cores"],
        slots=offered["slots"],
        sentences=[*told_versions, *offered["sentences"]],
    )


def _as_described(refusal: str, request: dict[str, Any]) -> str:
    """Say it of the description, where the GPUs of a host stand, and not of the magic's line."""
    words = refusal.replace(f"--gpus {request['gpus']}", f'gpus = "{request["gpus"]}"')
    words = words.replace("Run %gpus to list them", "Correct gpus in the cluster's description")
    return words.replace("--gpus", "gpus")


def _explain(host: str, python: str, words: str) -> PoolStartError:
    said = "; ".join(words.strip().splitlines()[-3:]) or "nothing"
    if "not found" in words or "No such file" in words:
        return PoolStartError(
            f"There is no {python} on {host}. Name the interpreter there as `python` in the "
            f"cluster's description. The host said: {said}"
        )
    return PoolStartError(
        f"{python} on {host} cannot run engines. Try `{python} -c 'import jupyter_mgpu'` there. "
        f"The host said: {said}"
    )
