"""What each engine is started with, made of the GPUs that were chosen for its rank."""

import os
from collections.abc import Callable

from jupyter_mgpu import cuda, host
from jupyter_mgpu.gpus import Choice, Slot
from jupyter_mgpu.gpus.pinning import compare
from jupyter_mgpu.leases import Claim
from jupyter_mgpu.nvml import Inventory
from jupyter_mgpu.on_engine import warning_filters
from jupyter_mgpu.output import notices
from jupyter_mgpu.owner.plans import EnginePlan

Say = Callable[[str], None]


def plan_engines(choice: Choice, world_size: int, say: Say = notices.say) -> tuple[EnginePlan, ...]:
    """Plan the engines of a choice.

    Args:
        choice: The GPUs of each rank, or none.
        world_size: How many engines share the cores.
        say: Called with what the user should read while they start.
    """
    threads = max(1, host.num_cores() // world_size)
    return tuple(_plan_engine(slot, threads, choice.inventory, say) for slot in choice.slots)


def claims_of(choice: Choice) -> dict[int, Claim]:
    """Return what keeps the chosen GPUs from other pools, by rank."""
    return {slot.rank: slot.claim for slot in choice.slots if slot.claim is not None}


def _plan_engine(slot: Slot, threads: int, inventory: Inventory, say: Say) -> EnginePlan:
    device = ", ".join(f"{device.label} ({device.name})" for device in slot.devices) or "CPU"
    environment = dict(slot.environment)
    environment[warning_filters.VARIABLE] = warning_filters.describe()
    if "OMP_NUM_THREADS" not in os.environ:
        environment["OMP_NUM_THREADS"] = str(threads)
    place = slot.visible.index(slot.devices[0]) if slot.devices else 0
    return EnginePlan(
        rank=slot.rank,
        device=device,
        torch_device=f"cuda:{place}" if slot.devices else "cpu",
        environment=environment,
        gpu_uuids=tuple(device.uuid for device in slot.devices),
        prove=_prover(slot, inventory, say),
    )


def _prover(
    slot: Slot, inventory: Inventory, say: Say
) -> Callable[[], tuple[bool, str | None]] | None:
    """Make the function that asks CUDA what a slot's environment shows."""
    if not slot.devices:
        return None

    def prove() -> tuple[bool, str | None]:
        (answer,) = cuda.visible_uuids([{**os.environ, **slot.environment}])
        proof = compare(slot.rank, slot.visible, answer, inventory.devices)
        if proof.warning is not None:
            say(proof.warning)
        return proof.is_proven, proof.error

    return prove
