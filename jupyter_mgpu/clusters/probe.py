"""Looks at the host it runs on. Sent to other hosts as text, so: standard library only, any Python.

    here                          there
    program, as one line of JSON
    {"op": "look", ...}           facts: Python, packages, GPUs, addresses, an open port, the clock
    {"op": "connect", ...}        which addresses it reaches, and why not the others
    end of input                  it ends

Answers are lines that begin with MARK; others are what a shell says at its start.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import os
import pathlib
import platform
import socket
import sys
import threading
from typing import Any

MARK = "MGPU-PROBE "
BOOTSTRAP = "import json,sys;exec(json.loads(sys.stdin.readline()))"
"""Runs this file on the other side, where it is the first line of the standard input."""

_BACKLOG = 64
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 96


def listen(token: str) -> int:
    """Answer each connection with a token, on all addresses, until the process ends.

    Returns:
        The port.
    """
    server = socket.socket()
    server.bind(("", 0))
    server.listen(_BACKLOG)
    thread = threading.Thread(target=_answer_all, args=(server, token), daemon=True)
    thread.start()
    return int(server.getsockname()[1])


def _answer_all(server: socket.socket, token: str) -> None:
    while True:
        with contextlib.suppress(OSError):
            connection = server.accept()[0]
            with connection:
                connection.settimeout(1.0)
                connection.sendall(token.encode())


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


def own_addresses() -> dict[str, str]:
    """Find this host's IPv4 addresses by interface, those beyond loopback first.

    Source:
        netdevice(7), SIOCGIFADDR.
    """
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = name.encode()[:15].ljust(256, b"\0")
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    return dict(sorted(found.items(), key=lambda pair: pair[1].startswith("127.")))


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Collect the facts.

    Args:
        request: `packages`, whose versions are wanted; `token`, for who connects; `file`, one of
            the asking host's, with `content`, to find out whether its folder is shared; `folder`,
            in which engines are to work.
    """
    gpus, trouble = list_gpus()
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: _version(name) for name in request["packages"]},
        "gpus": gpus,
        "gpu_trouble": trouble,
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "addresses": own_addresses(),
        "infiniband": infiniband_ports(),
        "port": listen(request["token"]),
        "is_shared": _holds(request["file"], request["content"]),
        "has_folder": os.path.isdir(os.path.expanduser(request["folder"] or "~")),  # noqa: PTH111, PTH112
        "time": datetime.datetime.now(datetime.timezone.utc).timestamp(),  # noqa: UP017 - any Python
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


def _connect_all(request: dict[str, Any]) -> list[str | None]:
    """Try all targets at once: each one that drops packets takes the whole time-out."""
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


def main() -> None:
    """Answer requests until there are no more."""
    operations = {"look": look, "connect": _connect_all}
    for line in sys.stdin:
        request = json.loads(line)
        answer = operations[request["op"]](request)
        sys.stdout.write(MARK + json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
