"""The GPUs of this machine, and how a request such as `--gpus 1,3` picks some."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

from jupyter_mgpu.errors import DuplicateGpuError, GpuNotFoundError, SelectionError

DeviceIndex = NewType("DeviceIndex", int)
"""Position of a GPU in NVML's order, as `nvidia-smi -L` prints it."""

_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+", re.IGNORECASE)
_LARGEST_RANGE = 1024


@dataclass(frozen=True, slots=True)
class MigPlace:
    """Where a MIG instance lies on its GPU."""

    parent_index: DeviceIndex
    parent_uuid: str
    position: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one MIG instance of a divided GPU.

    Attributes:
        index: NVML's number; None for a MIG instance, which has none.
        mig: The place on the parent GPU; None for a whole GPU.
        is_divided: A whole GPU in MIG mode, whose instances are used in its stead.
    """

    index: DeviceIndex | None
    uuid: str
    name: str
    memory_total_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    bus_id: str | None = None
    mig: MigPlace | None = None
    is_divided: bool = False

    @property
    def label(self) -> str:
        """The words by which messages call this device: `GPU 2`, `GPU 0 MIG 1`."""
        if self.mig is not None:
            return f"GPU {self.mig.parent_index} MIG {self.mig.position}"
        return f"GPU {self.index}"

    @property
    def request(self) -> str:
        """What to type after `--gpus` to get this device."""
        return self.uuid if self.index is None else str(self.index)


def parse_gpus(text: str, available: Sequence[Device] = ()) -> list[int | str]:
    """Read `1,3`, `0-3`, `2,0` or UUIDs, in the order typed.

    Args:
        text: What the user typed after `--gpus`.
        available: The devices that an error lists.

    Returns:
        NVML numbers and UUIDs (or their beginnings).

    Raises:
        SelectionError: If a part is neither a number, a range nor a UUID.
    """
    requested: list[int | str] = []
    for part in (piece.strip() for piece in text.split(",")):
        requested += _parse_part(part, text, available)
    return requested


def select_devices(requested: Sequence[int | str], available: Sequence[Device]) -> list[Device]:
    """Pick the requested GPUs in the order asked for.

    Args:
        requested: NVML numbers, UUIDs, or beginnings of UUIDs that fit one device only. Their
            order becomes the order of the ranks.
        available: Every device that may be used: whole GPUs and MIG instances.

    Returns:
        One device per entry.

    Raises:
        GpuNotFoundError: If a device is not there.
        DuplicateGpuError: If a device is named twice.
        SelectionError: If the beginning of a UUID fits several devices, or a GPU is divided.
    """
    selected: list[Device] = []
    for request in requested:
        device = _find(request, available)
        if device in selected:
            raise DuplicateGpuError(request)
        selected.append(device)
    return selected


def listed(available: Sequence[Device]) -> str:
    """List devices as one types them after `--gpus`."""
    return ", ".join(device.request for device in available if not device.is_divided) or "none"


def _parse_part(part: str, text: str, available: Sequence[Device]) -> list[int | str]:
    if part.isascii() and part.isdigit():
        return [int(part)]
    if match := _RANGE.fullmatch(part):
        first, last = int(match[1]), int(match[2])
        if first <= last < first + _LARGEST_RANGE:
            return list(range(first, last + 1))
    elif _UUID.fullmatch(part):
        return [part]
    blamed = f"{part!r} in --gpus {text}" if text.strip() else "--gpus without a value"
    raise SelectionError(
        f"{blamed} names no GPU. Write numbers (1,3), a range (0-3) or UUIDs; "
        f"this machine has: {listed(available)}."
    )


def _find(request: int | str, available: Sequence[Device]) -> Device:
    if isinstance(request, int):
        found = [device for device in available if device.index == request]
    else:
        wanted = request.lower()
        found = [device for device in available if device.uuid.lower().startswith(wanted)]
        exact = [device for device in found if device.uuid.lower() == wanted]
        found = exact or found
    if not found:
        usable = [device.request for device in available if not device.is_divided]
        raise GpuNotFoundError(request, usable)
    if len(found) > 1:
        fitting = ", ".join(device.uuid for device in found)
        raise SelectionError(f"{request} fits several GPUs: {fitting}. Write more of the UUID.")
    if found[0].is_divided:
        raise SelectionError(_divided(found[0], available))
    return found[0]


def _divided(gpu: Device, available: Sequence[Device]) -> str:
    parts = [d.uuid for d in available if d.mig is not None and d.mig.parent_uuid == gpu.uuid]
    has = ", ".join(parts) or "no instance yet (create one with nvidia-smi mig)"
    return f"{gpu.label} is divided into MIG instances. Name an instance in its stead: {has}."
