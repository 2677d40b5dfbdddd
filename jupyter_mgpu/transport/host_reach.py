"""Reaches the hosts of a pool: connects, asks what is there, finds out which way leads back."""

import contextlib
import json
import secrets
import shlex
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from jupyter_mgpu.clusters.versions import compare, facts
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import PoolStartError
from jupyter_mgpu.transport import host_probe
from jupyter_mgpu.transport.ssh_connection import SshConnection

_MARK_NAME = ".mgpu-probe-"
_MARK_LIFE_S = 300.0


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
        caller: The address of this machine that leads from there to here; None if none does.
        shares_files: Whether the notebook's folder is the same there.
        num_cores: How many cores may be kept busy there.
        slots: What its engines would get, one per engine.
        sentences: What the user should be told.
    """

    caller: str | None
    shares_files: bool
    num_cores: int
    slots: list[dict[str, Any]]
    sentences: list[str]


def reach(hosts: Sequence[Asked], address: str | None, folder: Path) -> list[Reached]:
    """Connect to hosts and ask them as `reach_each` does, and fail with the first that fails."""
    found = []
    for answer in reach_each(hosts, address, folder):
        if isinstance(answer, PoolStartError):
            raise answer
        found.append(answer)
    return found


def reach_each(
    hosts: Sequence[Asked], address: str | None, folder: Path
) -> list[Reached | PoolStartError]:
    """Connect to hosts and ask them, all at the same time.

    Args:
        hosts: The hosts.
        address: The address of this machine that they must use; None to try all it has.
        folder: The notebook's folder.

    Returns:
        For each what it answers, or the error: HostUnreachableError if it does not, PoolStartError
        if engines cannot run there; it says why and what to do.
    """
    nonce = secrets.token_hex(16)
    with _doorbell(nonce) as port, marked(folder, nonce) as file:
        callers = [(own, port) for own in ([address] if address else own_addresses())]
        common = {"callers": callers, "nonce": nonce, "file": str(file)}
        asking = [
            call_in_thread(lambda host=host: _ask(host, common), "mgpu-probe")  # type: ignore[misc]
            for host in hosts
        ]
        return [_outcome(answer) for answer in asking]


def _outcome(asked: "Future[Reached]") -> Reached | PoolStartError:
    try:
        return asked.result()
    except PoolStartError as error:
        return error


def own_addresses() -> list[str]:
    """List this machine's addresses that others might reach."""
    return [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]


@contextlib.contextmanager
def _doorbell(nonce: str) -> Iterator[int]:
    """Answer each connection with a word that nobody else knows, and hear nothing."""
    with socket.create_server(("", 0), backlog=128) as listener:

        def serve() -> None:
            while True:
                try:
                    visitor, _ = listener.accept()
                except OSError:  # closed
                    return
                with visitor:
                    visitor.sendall(nonce.encode())

        threading.Thread(target=serve, name="mgpu-doorbell", daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # ends the thread's accept


@contextlib.contextmanager
def marked(folder: Path, nonce: str) -> Iterator[Path]:
    """Put a word into a file of a folder, by which another host knows the same folder."""
    file = folder / f"{_MARK_NAME}{nonce}"
    now_s = datetime.now(UTC).timestamp()
    for old in folder.glob(f"{_MARK_NAME}*"):  # left by a kernel that was killed just then
        with contextlib.suppress(OSError):
            if now_s - old.stat().st_mtime > _MARK_LIFE_S:
                old.unlink()
    try:
        file.write_text(nonce)
    except OSError:  # not to be written: then modules must be there by other means
        yield file
        return
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def _ask(host: Asked, common: dict[str, Any]) -> Reached:
    name = host.connection.target.host
    command = [shlex.quote(host.python), "-P", "-m", host_probe.__name__]
    done = host.connection.run(command, json.dumps({**common, "request": host.request}))
    told = next((line for line in done.stdout.splitlines() if line.startswith(host_probe.MARK)), "")
    if not told:
        raise _explain(name, host.python, done.stderr)
    answer = json.loads(told.removeprefix(host_probe.MARK))
    refused, told_versions = compare(facts(), answer["facts"], name)
    if refused:
        raise PoolStartError(f"{' '.join(refused)} Install the same version on both.")
    if "refusal" in answer:
        raise PoolStartError(f"On {name}: {_as_described(answer['refusal'], host.request)}")
    sentences = [*told_versions, *answer["sentences"]]
    fields = ("caller", "shares_files", "num_cores", "slots")
    return Reached(**{field: answer[field] for field in fields}, sentences=sentences)


def _as_described(refusal: str, request: dict[str, Any]) -> str:
    """Say it of the description, where the GPUs of a host stand, and not of the magic's line."""
    words = refusal.replace(f"--gpus {request['gpus']}", f'gpus = "{request["gpus"]}"')
    words = words.replace("Run %gpus to list them", "Correct gpus in the cluster's description")
    return words.replace("--gpus", "gpus")


def _explain(host: str, python: str, words: str) -> PoolStartError:
    said = "; ".join(words.strip().splitlines()[-3:]) or "nothing"
    if "No module named 'jupyter_mgpu'" in words or "No module named jupyter_mgpu" in words:
        return PoolStartError(
            f"{python} on {host} does not have the package jupyter_mgpu. Install version "
            f"{metadata.version('jupyter_mgpu')} there: {python} -m pip install jupyter_mgpu"
        )
    if "not found" in words or "No such file" in words:
        return PoolStartError(
            f"There is no {python} on {host}. Name the interpreter there as `python` in the "
            f"cluster's description. The host said: {said}"
        )
    return PoolStartError(
        f"{python} on {host} cannot run engines. Try `{python} -c 'import jupyter_mgpu'` there. "
        f"The host said: {said}"
    )
