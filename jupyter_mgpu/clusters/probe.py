"""Looks at the host it runs on. Sent to other hosts as text, so: standard library only, any Python.

    here                          there
    program, as one line of JSON
    {"op": "look", ...}           facts: Python, packages, GPUs, addresses, an open port, the clock
    {"op": "connect", ...}        which addresses it reaches, and why not the others
    {"op": "call", ...}           what a function of the package that is installed there returns
    end of input                  it ends

Answers are lines that begin with MARK; others are what a shell says at its start.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import importlib
import json
import os
import pathlib
import platform
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

MARK = "MGPU-PROBE "
BOOTSTRAP = (
    "import sys;sys.path=[p for p in sys.path if p];"  # files of the working folder hide no library
    "import json;exec(json.loads(sys.stdin.readline()))"
)
"""Runs this file on the other side, where it is the first line of the standard input."""

_BACKLOG = 128
_NAME_BYTES = 96


def bind_all() -> socket.socket:
    """Bind a port on all addresses of this host, of both families where it has both."""
    try:
        bound = socket.socket(socket.AF_INET6)
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("::", 0))
    except OSError:  # it has no IPv6
        bound = socket.socket()
        bound.bind(("", 0))
    return bound


class Doorbell:
    """Answers each connection with a token, on all addresses, and hears nothing.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._server = bind_all()
        self._server.listen(_BACKLOG)
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._answer_all, name="mgpu-doorbell", daemon=True).start()

    def _answer_all(self) -> None:
        while True:
            try:
                connection = self._server.accept()[0]
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(1.0)
                connection.sendall(self._token.encode())

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends the thread's accept
        self._server.close()


def connect(address: str, port: int, token: str, timeout: float) -> str | None:
    """Try a connection to a listener of ours.

    Returns:
        None if it answers with its token, else why not.
    """
    try:
        with socket.create_connection((address, port), timeout) as connection:
            connection.settimeout(timeout)
            said = b""
            while len(said) < len(token):
                part = connection.recv(len(token))
                if not part:
                    break
                said += part
    except OSError as error:
        return str(error.strerror or error)
    return None if said == token.encode() else "somebody else answers there"


class _Interface(ctypes.Structure):
    """The beginning of struct ifaddrs."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def own_addresses() -> list[tuple[str, str]]:
    """Find this host's addresses, each with its interface: IPv4 first, loopback last.

    Source:
        getifaddrs(3), which is the order that gloo takes them in; ip(7), ipv6(7).
    """
    libc = ctypes.CDLL(None)
    first = ctypes.POINTER(_Interface)()
    if libc.getifaddrs(ctypes.byref(first)):
        return []
    found = []
    entry = first  # type: Any
    while entry:
        address = _read_address(entry.contents.address)
        if address is not None:
            found.append((entry.contents.name.decode(), address))
        entry = entry.contents.next
    libc.freeifaddrs(first)
    return sorted(found, key=lambda pair: (is_loopback(pair[1]), ":" in pair[1]))


def _read_address(place: int | None) -> str | None:
    """Read a struct sockaddr; None for one that does not name a host by itself."""
    if not place:
        return None
    family = ctypes.c_ushort.from_address(place).value
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(place + 4, 4))
    if family == socket.AF_INET6:
        address = socket.inet_ntop(family, ctypes.string_at(place + 8, 16))
        return None if address.startswith("fe80:") else address
    return None


def is_loopback(address: str) -> bool:
    """Tell whether an address leads to its own host only."""
    return address.startswith("127.") or address == "::1"


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Collect the facts.

    Args:
        request: `packages`, whose versions are wanted; `token`, for who connects, empty for
            nobody; `file`, one of the asking host's, with `content`, to find out whether its folder
            is shared; `folder`, in which engines are to work.
    """
    gpus, trouble = list_gpus()
    return {
        "host": socket.gethostname(),
        **versions(request["packages"]),
        "gpus": gpus,
        "gpu_trouble": trouble,
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "addresses": [address for _, address in own_addresses()],
        "infiniband": infiniband_ports(),
        "caller": os.environ.get("SSH_CONNECTION", "").partition(" ")[0],
        "port": Doorbell(request["token"]).port if request["token"] else None,
        "is_shared": _holds(request["file"], request["content"]),
        "has_folder": os.path.isdir(os.path.expanduser(request["folder"] or "~")),  # noqa: PTH111, PTH112
        "time": datetime.datetime.now(datetime.timezone.utc).timestamp(),  # noqa: UP017 - any Python
    }


def versions(packages: Sequence[str]) -> dict[str, Any]:
    """Return this Python's version, and those of packages; None for one that is missing."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        from importlib.metadata import version

        return version(package)
    except Exception:  # noqa: BLE001 - missing, broken, or a Python before 3.8
        return None


def _holds(file: str | None, content: str) -> bool | None:
    if file is None:
        return None
    try:
        with open(file) as opened:  # noqa: PTH123 - any Python
            return opened.read() == content
    except OSError:
        return False


def list_gpus() -> tuple[list[dict[str, Any]], str | None]:
    """List the GPUs in nvidia-smi's order, or say why there are none.

    Source:
        NVML API reference: nvmlInit_v2, nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetUUID.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return [], "there is no NVIDIA driver"
    count = ctypes.c_uint()
    code = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    if code:
        return [], "the NVIDIA driver does not answer (NVML error %d)" % code  # noqa: UP031
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        name, uuid = (ctypes.create_string_buffer(_NAME_BYTES) for _ in range(2))
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES)
        nvml.nvmlDeviceGetUUID(handle, uuid, _NAME_BYTES)
        found.append({"index": index, "name": name.value.decode(), "uuid": uuid.value.decode()})
    return found, None


def infiniband_ports(folder: str = "/sys/class/infiniband") -> list[dict[str, Any]]:
    """List the ports of InfiniBand and RoCE adapters: in words, and whether they are active."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("*/ports/*")):
        facts = [_read(path / name) for name in ("link_layer", "rate", "state")]
        words = " ".join([path.parts[-3], "port", path.name, *facts])
        found.append({"words": words, "is_active": "ACTIVE" in facts[-1]})
    return found


def _read(file: pathlib.Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return "n/a"


def connect_all(request: dict[str, Any]) -> list[str | None]:
    """Try all targets at once: each one that drops packets takes the whole time-out.

    Args:
        request: `targets`, each with `address`, `port` and `token`; the `timeout` of each.

    Returns:
        For each None if it answers with its token, else why not.
    """
    results = [None] * len(request["targets"])  # type: list[str | None]

    def try_one(place: int, target: dict[str, Any]) -> None:
        results[place] = connect(target["address"], target["port"], target["token"], timeout)

    timeout = request["timeout"]
    threads = [
        threading.Thread(target=try_one, args=pair) for pair in enumerate(request["targets"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _call(request: dict[str, Any]) -> Any:
    function = getattr(importlib.import_module(request["module"]), request["function"])
    return function(*request["arguments"])


def main() -> None:
    """Answer requests until there are no more."""
    operations = {"look": look, "connect": connect_all, "call": _call}
    for line in sys.stdin:
        request = json.loads(line)
        answer = operations[request["op"]](request)
        sys.stdout.write(MARK + json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
