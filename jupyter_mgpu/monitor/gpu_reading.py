"""Reads the GPUs while the driver answers, and says what it does when it does not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jupyter_mgpu.devices import Device
from jupyter_mgpu.monitor.records import GpuSample, GpuState, GpuUse
from jupyter_mgpu.monitor.unified_memory import is_memory_shared, with_host_memory
from jupyter_mgpu.monitor.users import UserFinder
from jupyter_mgpu.nvml import (
    NOT_REPORTED,
    NvmlTroubleError,
    Reading,
    Sampled,
    Sampling,
    UnusableGpu,
    all_unknown,
)

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
_TEGRA = "(nvgpu)"
_NAMES = {"processes": "users"}
_FIELDS = tuple(_NAMES.get(name, name) for name in all_unknown(""))


@dataclass(frozen=True, slots=True)
class GpusRead:
    """What is known of the GPUs now.

    Attributes:
        read_s: When each answered last, on the monotonic clock; minus infinity for never.
        is_known: The driver has answered, or said why it cannot.
    """

    gpus: tuple[GpuSample, ...] = ()
    read_s: tuple[float, ...] = ()
    trouble: str | None = None
    driver_version: str | None = None
    is_known: bool = False


class GpuReader:
    """Reads all GPUs again and again; keeps their last values while the driver is silent."""

    def __init__(self) -> None:
        self._sampling = Sampling()
        self._users = UserFinder()
        self._sampled: Sampled | None = None
        self._trouble: str | None = None
        self._retry_s = 0.0
        self._pause_s = FIRST_RETRY_S

    def begin(self, now_s: float) -> None:
        """Let the driver begin to answer; returns at once."""
        if now_s < self._retry_s:
            return
        try:
            self._sampling.begin()
        except NvmlTroubleError as error:
            # It hangs in an earlier call: to see whether it still does costs nothing.
            self._trouble = str(error.trouble)

    def finish(self, now_s: float, patience_s: float) -> GpusRead:
        """Take what the driver has answered within so many seconds."""
        try:
            sampled = self._sampling.answer(patience_s)
        except NvmlTroubleError as error:
            self._give_up(error, now_s)
        else:
            if sampled is not None:
                self._sampled, self._pause_s = sampled, FIRST_RETRY_S
                self._trouble = None if sampled.trouble is None else str(sampled.trouble)
        return self._read(now_s)

    def _give_up(self, error: NvmlTroubleError, now_s: float) -> None:
        self._trouble = str(error.trouble)
        self._retry_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_RETRY_S)

    def _read(self, now_s: float) -> GpusRead:
        sampled = self._sampled
        if sampled is None:
            return GpusRead(trouble=self._trouble, is_known=self._trouble is not None)
        users = self._users.find(sampled.devices, sampled.readings, now_s)
        found = zip(sampled.devices, sampled.readings, users, strict=True)
        gpus = [_sample(device, reading, uses) for device, reading, uses in found]
        gpus += map(_unusable, sampled.unusable)
        read_s = [-math.inf if at is None else at for at in sampled.read_s]
        return GpusRead(
            gpus=tuple(gpus),
            read_s=(*read_s, *(-math.inf for _ in sampled.unusable)),
            trouble=self._trouble,
            driver_version=sampled.driver_version,
            is_known=True,
        )


def _sample(device: Device, reading: Reading, users: tuple[GpuUse, ...] | None) -> GpuSample:
    state: GpuState = "lost" if reading.is_lost else "divided" if device.is_divided else "ok"
    sample = GpuSample(
        label=device.label,
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        state=state,
        utilization_percent=reading.utilization_percent,
        memory_used_bytes=reading.memory_used_bytes,
        memory_total_bytes=reading.memory_total_bytes or device.memory_total_bytes,
        memory_reserved_bytes=reading.memory_reserved_bytes,
        power_watts=reading.power_watts,
        power_limit_watts=reading.power_limit_watts,
        temperature_celsius=reading.temperature_celsius,
        throttle=reading.throttle,
        users=users,
        compute_capability=device.compute_capability,
    )
    if is_memory_shared(device, reading):
        sample = with_host_memory(sample, reading)
    return replace(sample, reasons=_reasons(sample, reading))


def _reasons(sample: GpuSample, reading: Reading) -> Mapping[str, str]:
    unknown = [name for name in _FIELDS if getattr(sample, name) is None]
    if sample.name and sample.name.endswith(_TEGRA):
        return dict.fromkeys(unknown, "NVML has no numbers on Tegra (Jetson)")
    told = {_NAMES.get(name, name): reason for name, reason in reading.reasons.items()}
    return {name: told.get(name, NOT_REPORTED) for name in unknown}


def _unusable(gpu: UnusableGpu) -> GpuSample:
    return GpuSample(
        label=f"GPU {gpu.index}",
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        state="lost" if gpu.is_lost else "unusable",
        reasons=dict.fromkeys(_FIELDS, gpu.reason),
    )
