"""Runs on another host, for a moment: says what a pool must know of it before it starts there.

It is run as a module; a question goes in as JSON, and the answer comes out as JSON.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_mgpu import gpus, host
from jupyter_mgpu.clusters.versions import facts
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.gpus import Choice, Request

MARK = "mgpu-probe: "
"""Before the answer, since shells print greetings."""
CONNECT_S = 2.0


def main() -> None:
    """Answer the question on the standard input."""
    asked = json.load(sys.stdin)
    print(MARK + json.dumps(answer(asked)))  # noqa: T201 - the answer


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Describe this host.

    Args:
        asked: `request` (of GPUs, as in `Request`; None for no choice), `callers` (addresses of
            the kernel's host, with a port), `nonce` (what is heard there), `file` (a file of the
            kernel's folder that has it in it).
    """
    return {
        "hostname": socket.gethostname(),
        "num_cores": host.num_cores(),
        "facts": facts(),
        "caller": _reached(asked["callers"], asked["nonce"]),
        "shares_files": _has(Path(asked["file"]), asked["nonce"]),
        **_choose(asked["request"]),
    }


def _has(file: Path, nonce: str) -> bool:
    try:
        return file.read_text() == nonce
    except OSError:
        return False


def _reached(callers: Sequence[Sequence[Any]], nonce: str) -> str | None:
    """Return the first address of the kernel's host that leads there, by trying."""
    came_from = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    for address, port in sorted(callers, key=lambda caller: caller[0] != came_from):
        try:
            with socket.create_connection((address, port), CONNECT_S) as tried:
                tried.settimeout(CONNECT_S)
                if tried.recv(len(nonce)).decode() == nonce:
                    return str(address)
        except (OSError, ValueError):
            continue
    return None


def _choose(asked: dict[str, Any] | None) -> dict[str, Any]:
    if asked is None:
        return {"slots": [], "sentences": []}
    try:
        choice = gpus.choose(Request(**asked), takes_leases=False)
    except MgpuError as error:
        return {"slots": [], "sentences": [], "refusal": str(error)}
    return {"slots": _slots(choice), "sentences": list(choice.sentences)}


def _slots(choice: Choice) -> list[dict[str, Any]]:
    return [
        {
            "uuids": [device.uuid for device in slot.devices],
            "visible": [device.uuid for device in slot.visible],
            "device": ", ".join(f"{d.label} ({d.name})" for d in slot.devices) or "CPU",
            "environment": dict(slot.environment),
            "place": slot.visible.index(slot.devices[0]) if slot.devices else 0,
        }
        for slot in choice.slots
    ]


if __name__ == "__main__":
    main()
