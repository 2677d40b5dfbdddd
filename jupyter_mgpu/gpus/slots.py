"""What each engine of a pool is given: devices, environment, leases."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_mgpu import cuda
from jupyter_mgpu.devices import Device
from jupyter_mgpu.errors import SelectionError
from jupyter_mgpu.gpus.pinning import Proof, compare, pin
from jupyter_mgpu.gpus.request import Request
from jupyter_mgpu.leases import PATHS_VARIABLE, Claim, LeaseBook
from jupyter_mgpu.nvml import Inventory


@dataclass(frozen=True, slots=True)
class Slot:
    """What one engine is given.

    Attributes:
        devices: Its own GPUs; empty for a CPU engine.
        visible: The GPUs that it sees, in the order of its `cuda:0`, `cuda:1`, ...
        environment: The variables to set before its start.
        claim: Its leases; None for a CPU engine.
    """

    rank: int
    devices: tuple[Device, ...]
    visible: tuple[Device, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    claim: Claim | None = None

    @property
    def lease_paths(self) -> tuple[Path, ...]:
        """The records that the engine's watchdog has to lock."""
        return self.claim.paths if self.claim is not None else ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The engines that a pool can start.

    Attributes:
        slots: One per engine, in rank order.
        sentences: What the user should be told.
        inventory: The machine's GPUs at that moment.
    """

    slots: tuple[Slot, ...]
    sentences: tuple[str, ...]
    inventory: Inventory

    @property
    def has_gpus(self) -> bool:
        """The engines have GPUs."""
        return any(slot.devices for slot in self.slots)

    def drop(self) -> None:
        """Give all GPUs back, because the pool does not start."""
        for slot in self.slots:
            if slot.claim is not None:
                slot.claim.drop()

    def prove(self, base_environment: Mapping[str, str] | None = None) -> list[Proof]:
        """Ask CUDA what each GPU engine will see; one proof per slot that has devices."""
        base = os.environ if base_environment is None else base_environment
        slots = [slot for slot in self.slots if slot.devices]
        answers = cuda.visible_uuids([{**base, **slot.environment} for slot in slots])
        return [
            compare(slot.rank, slot.visible, answer, self.inventory.devices)
            for slot, answer in zip(slots, answers, strict=True)
        ]


def make_slots(
    request: Request, devices: Sequence[Device], inventory: Inventory, book: LeaseBook | None
) -> tuple[Slot, ...]:
    """Divide devices among engines, in rank order, and lease them if there is a book for that."""
    number = request.num_engines(len(devices))
    number = min(number, request.largest or number)
    width = request.gpus_per_engine
    shares = [tuple(devices[place // request.per_gpu * width :][:width]) for place in range(number)]
    everything = tuple(dict.fromkeys(device for share in shares for device in share))
    slots: list[Slot] = []
    with contextlib.ExitStack() as undo:
        for rank, share in enumerate(shares, start=request.first_rank):
            visible = everything if request.visible == "pool" else share
            _check_instances(visible)
            environment = pin(visible, inventory)
            if book is None:
                slots.append(Slot(rank, share, visible, environment))
                continue
            claim = book.claim(
                [device.uuid for device in share],
                rank=rank,
                pool=request.pool,
                notebook=request.notebook,
                kernel_id=request.kernel_id,
            )
            undo.callback(claim.drop)
            environment[PATHS_VARIABLE] = os.pathsep.join(str(path) for path in claim.paths)
            slots.append(Slot(rank, share, visible, environment, claim))
        undo.pop_all()
    return tuple(slots)


def _check_instances(visible: Sequence[Device]) -> None:
    instances = [device for device in visible if device.mig is not None]
    if instances and len(visible) > 1:
        raise SelectionError(
            f"An engine can see one MIG instance only, not {len(visible)} devices "
            f"({', '.join(device.label for device in visible)}). Leave out --gpus-per-engine "
            "and --visible pool."
        )
