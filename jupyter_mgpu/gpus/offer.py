"""What this host has for the engines of a pool that is owned on another host; the probe asks it."""

from typing import Any

from jupyter_mgpu import host
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.gpus.choosing import choose
from jupyter_mgpu.gpus.request import Request
from jupyter_mgpu.gpus.slots import Choice


def offer(wish: dict[str, Any]) -> dict[str, Any]:
    """Choose GPUs for engines, and lease none.

    Args:
        wish: The fields of a `Request`.

    Returns:
        `slots` (one per engine), `sentences` (for the user), `num_cores`; `refusal` if there is
        nothing as was asked for.
    """
    offered = {"slots": [], "sentences": [], "num_cores": host.num_cores()}
    try:
        choice = choose(Request(**wish), takes_leases=False)
    except MgpuError as error:
        return {**offered, "refusal": str(error)}
    return {**offered, "slots": _slots(choice), "sentences": list(choice.sentences)}


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
