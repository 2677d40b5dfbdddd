"""The environment that shows an engine its own GPUs, and the proof that CUDA agrees."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jupyter_mgpu import cuda
from jupyter_mgpu.devices import Device, listed, select_devices
from jupyter_mgpu.errors import GpuProofError, SelectionError
from jupyter_mgpu.gpus.allocation import Grant, read_grant
from jupyter_mgpu.nvml import Inventory

MASK_VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"

CPU_ENVIRONMENT = {MASK_VARIABLE: "", ORDER_VARIABLE: PCI_ORDER}
"""A CPU engine sees no GPU, so that no library of the user takes memory on one."""


def pin(devices: Sequence[Device], inventory: Inventory) -> dict[str, str]:
    """Make the variables that show these devices, in this order, and no others.

    Whole GPUs by number, since many libraries read the mask as integers. By UUID where a number
    could mean another GPU: MIG instances, and machines on which CUDA may leave some GPUs out.
    """
    by_uuid = bool(inventory.unusable) or any(gpu.is_divided for gpu in inventory.gpus)
    ordinals = _cuda_ordinals(inventory.gpus)
    entries = [
        device.uuid if by_uuid or device.mig else str(ordinals[device.uuid]) for device in devices
    ]
    return {MASK_VARIABLE: ",".join(entries), ORDER_VARIABLE: PCI_ORDER}


def _cuda_ordinals(gpus: Sequence[Device]) -> dict[str, int]:
    # NVML lists in PCI order, but does not promise it: the bus decides where it is known.
    if all(gpu.bus_id for gpu in gpus):
        gpus = sorted(gpus, key=lambda gpu: _bus_key(gpu.bus_id or ""))
    return {gpu.uuid: ordinal for ordinal, gpu in enumerate(gpus)}


def _bus_key(bus_id: str) -> tuple[int, ...]:
    try:
        return tuple(int(part, 16) for part in bus_id.replace(".", ":").split(":"))
    except ValueError:
        return ()


@dataclass(frozen=True, slots=True)
class Mask:
    """The devices that this process may use.

    Attributes:
        sentence: What the mask of its environment leaves; None without a mask.
    """

    devices: tuple[Device, ...]
    sentence: str | None = None


def read_mask(inventory: Inventory, environment: Mapping[str, str] | None = None) -> Mask:
    """Find which devices the environment's own mask leaves, in NVML's order.

    The driver itself translates it: numbers depend on CUDA_DEVICE_ORDER, UUIDs may be shortened,
    and one wrong entry hides all that follow.

    Raises:
        SelectionError: If neither the driver nor the mask itself says which GPUs are meant.
    """
    environment = os.environ if environment is None else environment
    mask = environment.get(MASK_VARIABLE)
    if mask is None:
        grant = read_grant(environment)
        return Mask(inventory.usable) if grant is None else _granted(grant, inventory)
    if not inventory.usable:
        return Mask(inventory.usable)
    answer = _translate(mask, environment)
    if answer.uuids is None:
        devices = _read_plain_mask(mask, inventory, str(answer.why_unknown))
    else:
        devices = _with_uuids(answer.uuids, inventory)
    return Mask(devices, f"{MASK_VARIABLE}={mask} leaves this notebook {_requests(devices)}.")


def _requests(devices: Sequence[Device]) -> str:
    return ", ".join(device.request for device in devices) or "none of this machine's GPUs"


def _granted(grant: Grant, inventory: Inventory) -> Mask:
    """Take those devices that belong to an allocation of Slurm, which numbers them as NVML does."""
    who = f"Slurm's job {grant.job}"
    if not grant.nodes:
        return Mask(
            inventory.usable,
            f"{who} holds this notebook, but Slurm does not say which GPUs are its own, so that "
            f"all of this machine count. Start the notebook by srun, or set {MASK_VARIABLE}.",
        )
    if grant.numbers is None:
        return Mask(
            inventory.usable,
            f"{who} is on {grant.nodes}, and this notebook is not: %parpool N --cluster slurm "
            "uses it.",
        )
    if inventory.instances:
        raise SelectionError(
            f"{who} grants this notebook some of this machine's GPUs, which are divided, and "
            f"Slurm numbers them otherwise. Start the notebook by srun, or set {MASK_VARIABLE}."
        )
    devices = tuple(d for d in inventory.usable if d.index in grant.numbers)
    return Mask(devices, f"{who} grants this notebook {_requests(devices)}.")


# Asking the driver takes up to seconds, and a pool that waits asks again and again.
_translated: dict[tuple[str, str | None], cuda.Answer] = {}


def _translate(mask: str, environment: Mapping[str, str]) -> cuda.Answer:
    if not mask.strip():
        return cuda.Answer(())
    key = (mask, environment.get(ORDER_VARIABLE))
    if key not in _translated:
        answer = _ask(mask, environment)
        if answer.uuids is None:
            return answer
        _translated[key] = answer
    return _translated[key]


def _ask(mask: str, environment: Mapping[str, str]) -> cuda.Answer:
    if "MIG-" not in mask.upper():
        return cuda.visible_uuids([environment])[0]
    # CUDA shows a process one instance only, but different engines may have different ones.
    entries = [{**environment, MASK_VARIABLE: entry} for entry in mask.split(",")]
    uuids: list[str] = []
    for answer in cuda.visible_uuids(entries):
        if not answer.uuids:
            return answer if answer.uuids is None else cuda.Answer(tuple(uuids))
        uuids += answer.uuids
    return cuda.Answer(tuple(uuids))


def _with_uuids(uuids: Sequence[str], inventory: Inventory) -> tuple[Device, ...]:
    return tuple(d for d in inventory.usable if cuda.bare_uuid(d.uuid) in uuids)


def _read_plain_mask(mask: str, inventory: Inventory, why: str) -> tuple[Device, ...]:
    """Read a mask of UUIDs, which no order can change, without the driver's help."""
    requested = [part.strip() for part in mask.split(",")]
    if all(part.upper().startswith(("GPU-", "MIG-")) for part in requested):
        return tuple(select_devices(requested, inventory.usable))
    raise SelectionError(
        f"This notebook has {MASK_VARIABLE}={mask}, and which GPUs that means cannot be found out: "
        f"{why}. Write UUIDs there, or unset it; this machine has: {listed(inventory.usable)}."
    )


def prove(environment: Mapping[str, str]) -> list[str]:
    """Ask CUDA which GPUs a process with this environment sees, in its order.

    Returns:
        UUIDs without their prefix.

    Raises:
        GpuProofError: If the driver does not say.
    """
    (answer,) = cuda.visible_uuids([environment])
    if answer.uuids is None:
        raise GpuProofError(f"Which GPUs CUDA sees cannot be found out: {answer.why_unknown}.")
    return list(answer.uuids)


@dataclass(frozen=True, slots=True)
class Proof:
    """What CUDA shows one rank, beside what it should show.

    Attributes:
        seen: UUIDs without prefix, in CUDA's order; None where the driver did not say.
        error: The sentence to raise; None if all is right or nothing is known.
        warning: Why nothing is known; None if it is.
    """

    rank: int
    expected: tuple[Device, ...]
    seen: tuple[str, ...] | None
    error: str | None
    warning: str | None

    @property
    def is_proven(self) -> bool:
        """CUDA itself confirmed the devices."""
        return self.error is None and self.warning is None


def compare(
    rank: int, expected: tuple[Device, ...], answer: cuda.Answer, known: Sequence[Device]
) -> Proof:
    """Compare what a rank should see with what CUDA shows."""
    if answer.uuids is None:
        warning = f"The GPU of rank {rank} is not proven: {answer.why_unknown}."
        return Proof(rank, expected, None, None, warning)
    if answer.uuids == tuple(cuda.bare_uuid(device.uuid) for device in expected):
        return Proof(rank, expected, answer.uuids, None, None)
    error = (
        f"Rank {rank} should run on {_named(expected)}, but CUDA shows it "
        f"{_named_uuids(answer.uuids, known)}. Run doctor() to see the CUDA variables."
    )
    return Proof(rank, expected, answer.uuids, error, None)


def _named(devices: Sequence[Device]) -> str:
    return ", ".join(f"{device.label} ({device.uuid})" for device in devices) or "no GPU"


def _named_uuids(uuids: Sequence[str], known: Sequence[Device]) -> str:
    by_uuid = {cuda.bare_uuid(device.uuid): device for device in known}
    return (
        ", ".join(
            _named([by_uuid[uuid]]) if uuid in by_uuid else f"an unknown GPU ({uuid})"
            for uuid in uuids
        )
        or "no GPU"
    )
