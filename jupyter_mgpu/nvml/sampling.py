"""Reads all devices again and again, at the least cost, without ever waiting for the driver.

    begin -> NVML thread: list (every 30 s), then per device the metrics that are due
    answer <- what was read, or None while the driver still works at it

Handles are kept and looked up anew when they fail; what a device does not support is asked again
once a minute; a lost device keeps its last values and is looked for every few seconds.
"""

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.devices import Device
from jupyter_mgpu.nvml.driver import Driver, driver
from jupyter_mgpu.nvml.inventory import Inventory, UnusableGpu, list_gpus
from jupyter_mgpu.nvml.reading import (
    LOST_CODES,
    METRICS,
    Reading,
    all_unknown,
    find_handle,
    is_loss,
)
from jupyter_mgpu.nvml.sleeping import ASLEEP, are_all_asleep
from jupyter_mgpu.nvml.troubles import (
    FUNCTION_NOT_FOUND,
    INVALID,
    NO_SUPPORT,
    PERMISSION,
    CallFailedError,
    NvmlTroubleError,
    Trouble,
)

LIST_EVERY_S = 30.0
LIST_TROUBLED_EVERY_S = 5.0
FIND_LOST_EVERY_S = 5.0
ASK_UNSUPPORTED_EVERY_S = 60.0
_EARLY_S = 0.3  # a tick may come a little early: then the answer is not due a whole tick later
_HOPELESS_CODES = (NO_SUPPORT, FUNCTION_NOT_FOUND, PERMISSION)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One pass over all devices.

    Attributes:
        devices: Whole GPUs, each followed by its MIG instances; those that were lost stay.
        readings: One per device; a lost device has its last values.
        read_s: When each device answered last, on the monotonic clock; None for never.
        unusable: GPUs that never answered.
        trouble: Why there is no device.
    """

    devices: tuple[Device, ...]
    readings: tuple[Reading, ...]
    read_s: tuple[float | None, ...]
    unusable: tuple[UnusableGpu, ...] = ()
    trouble: Trouble | None = None
    driver_version: str | None = None


class Sampling:
    """Reads all devices again and again; for one thread."""

    def __init__(self) -> None:
        self._pending: Future[Sampled] | None = None
        # What follows is touched in the NVML thread only.
        self._session = 0
        self._inventory = Inventory()
        self._list_due_s = 0.0
        self._watched: dict[str, _Watched] = {}

    def begin(self) -> None:
        """Let the NVML thread read, unless it still does.

        Raises:
            NvmlTroubleError: If the driver does not answer.
        """
        if self._pending is None:
            self._pending = driver.begin(self._read)

    def answer(self, patience_s: float) -> Sampled | None:
        """Return what was read, or None if nothing came within so many seconds.

        Raises:
            NvmlTroubleError: If the driver cannot be used or did not answer in time.
        """
        if self._pending is None:
            return None
        try:
            sampled = driver.wait(self._pending, patience_s)
        except TimeoutError:
            return None
        except CallFailedError as error:
            self._pending = None
            raise NvmlTroubleError(
                Trouble(
                    f"The NVIDIA driver cannot list its GPUs: {error.reason}.",
                    "Run `nvidia-smi` in a terminal; it should say the same.",
                )
            ) from error
        except NvmlTroubleError:
            self._pending = None
            raise
        self._pending = None
        return sampled

    def _read(self, nvml: Driver) -> Sampled:
        if not nvml.is_initialized and are_all_asleep():
            raise NvmlTroubleError(ASLEEP)
        nvml.ensure_initialized()
        now_s = time.monotonic()
        if nvml.session != self._session:
            self._session = nvml.session
            self._list_due_s = 0.0
            for watched in self._watched.values():
                watched.forget_handle()
        if now_s >= self._list_due_s:
            self._list(nvml, now_s)
        for watched in self._watched.values():
            watched.read(nvml, now_s)
        return self._sampled()

    def _list(self, nvml: Driver, now_s: float) -> None:
        self._inventory = listed = list_gpus(nvml)
        is_troubled = bool(listed.unusable) or listed.trouble is not None
        self._list_due_s = now_s + (LIST_TROUBLED_EVERY_S if is_troubled else LIST_EVERY_S)
        found = {device.uuid: device for device in listed.devices}
        for uuid, watched in list(self._watched.items()):
            # A GPU that is not listed any more is lost; an instance was taken apart by somebody.
            if uuid not in found and watched.device.mig is not None:
                del self._watched[uuid]
        for uuid, device in found.items():
            if uuid in self._watched:
                self._watched[uuid].device = device
            else:
                self._watched[uuid] = _Watched(device)

    def _sampled(self) -> Sampled:
        watched = sorted(self._watched.values(), key=lambda one: _place(one.device))
        listed = self._inventory
        return Sampled(
            devices=tuple(one.device for one in watched),
            readings=tuple(one.reading for one in watched),
            read_s=tuple(one.read_s for one in watched),
            unusable=tuple(gpu for gpu in listed.unusable if gpu.uuid not in self._watched),
            trouble=None if watched else listed.trouble,
            driver_version=listed.driver_version,
        )


class _Watched:
    """One device between two readings."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.reading = Reading(device.uuid, reasons=all_unknown("not read yet"))
        self.read_s: float | None = None
        self._handle: Any = None
        self._find_due_s = 0.0
        self._values: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}
        self._due_s = [0.0] * len(METRICS)

    def forget_handle(self) -> None:
        self._handle = None
        self._find_due_s = 0.0
        self._due_s = [0.0] * len(METRICS)

    def read(self, nvml: Driver, now_s: float) -> None:
        if self._handle is None and not self._find(nvml, now_s):
            return
        is_instance = self.device.mig is not None
        for number, metric in enumerate(METRICS):
            if now_s < self._due_s[number]:
                continue
            values, reasons, code = metric.answer(nvml, self._handle, is_instance=is_instance)
            if code in LOST_CODES:
                self._lose(next(iter(reasons.values())), now_s)
                return
            if code == INVALID:  # the driver does not know this handle any more
                self.forget_handle()
                return
            is_hopeless = code in _HOPELESS_CODES
            every_s = ASK_UNSUPPORTED_EVERY_S if is_hopeless else metric.every_s
            self._due_s[number] = now_s + every_s - _EARLY_S
            self._values |= values
            for name in metric.fields:
                self._reasons.pop(name, None)
            self._reasons |= reasons
        self.read_s = now_s
        self.reading = Reading(self.device.uuid, **self._values, reasons=dict(self._reasons))

    def _find(self, nvml: Driver, now_s: float) -> bool:
        if now_s < self._find_due_s:
            return False
        try:
            self._handle = find_handle(nvml, self.device)
        except CallFailedError as error:
            if is_loss(error):
                self._lose(error.reason, now_s)
            else:
                self.reading = Reading(self.device.uuid, reasons=all_unknown(error.reason))
            return False
        self._due_s = [0.0] * len(METRICS)
        return True

    def _lose(self, reason: str, now_s: float) -> None:
        self._handle = None
        self._find_due_s = now_s + FIND_LOST_EVERY_S
        known = {name: value for name, value in self._values.items() if value is not None}
        reasons = all_unknown(reason)
        for name in known:
            del reasons[name]
        self.reading = Reading(self.device.uuid, **known, reasons=reasons, is_lost=True)


def _place(device: Device) -> tuple[int, int]:
    if device.mig is not None:
        return device.mig.parent_index, device.mig.position
    return device.index or 0, -1
