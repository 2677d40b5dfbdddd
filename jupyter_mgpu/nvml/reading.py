"""One reading of one device: memory, utilisation, temperature, power, processes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jupyter_mgpu.devices import Device
from jupyter_mgpu.nvml.driver import (
    GPU_IS_LOST,
    NOT_FOUND,
    RESET_REQUIRED,
    CallFailedError,
    Driver,
    NvmlTroubleError,
    driver,
)
from jupyter_mgpu.nvml.inventory import read_memory

T = TypeVar("T")

MILLIWATTS_PER_WATT = 1000
_NO_VALUE_64 = 2**64 - 1
_NO_VALUE_32 = 2**32 - 1
_LARGEST_PLAUSIBLE_BYTES = 2**50


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a CUDA context, by the pid that the driver knows (the host's)."""

    pid: int
    memory_used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What NVML says about one device now. None means unknown, never zero.

    Attributes:
        utilization_percent: Share of the time in which at least one kernel ran.
        memory_reserved_bytes: What the driver keeps for itself; part of `memory_total_bytes`.
        processes: Compute processes, each pid once; None where they cannot be listed.
        reasons: For each field that is None, why.
        is_lost: The device does not answer any more.
    """

    uuid: str
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    utilization_percent: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    is_lost: bool = False


def read_devices(devices: Sequence[Device]) -> list[Reading]:
    """Read every device, in the order given. Never raises."""
    try:
        return driver.run(lambda nvml: _read_all(nvml, devices))
    except (NvmlTroubleError, CallFailedError) as error:
        trouble = error.trouble.why if isinstance(error, NvmlTroubleError) else error.reason
        return [Reading(device.uuid, reasons=_all_fields(trouble)) for device in devices]


def _read_all(nvml: Driver, devices: Sequence[Device]) -> list[Reading]:
    nvml.ensure_initialized()
    return [_read(nvml, device) for device in devices]


def _read(nvml: Driver, device: Device) -> Reading:
    try:
        # By UUID: the same index need not be the same GPU for ever.
        handle = nvml.call("nvmlDeviceGetHandleByUUID", device.uuid)
    except CallFailedError as error:
        is_lost = error.code in (GPU_IS_LOST, RESET_REQUIRED, NOT_FOUND)
        return Reading(device.uuid, reasons=_all_fields(error.reason), is_lost=is_lost)
    told = _Told()
    memory = told.value("memory_used_bytes", lambda: read_memory(nvml, handle))
    used, total = (memory.used, memory.total) if memory is not None else (None, None)
    if not total:
        told.spread("memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes")
    return Reading(
        uuid=device.uuid,
        memory_used_bytes=_plausible(used) if total else None,
        memory_total_bytes=_plausible(total) if total else None,
        memory_reserved_bytes=getattr(memory, "reserved", None),
        utilization_percent=told.value("utilization_percent", lambda: _utilization(nvml, handle)),
        temperature_celsius=told.value(
            "temperature_celsius", lambda: nvml.call("nvmlDeviceGetTemperature", handle, 0)
        ),
        power_watts=told.value(
            "power_watts",
            lambda: nvml.call("nvmlDeviceGetPowerUsage", handle) / MILLIWATTS_PER_WATT,
        ),
        processes=told.value("processes", lambda: _processes(nvml, handle)),
        reasons=told.reasons,
        is_lost=told.is_lost,
    )


class _Told:
    """Collects why values are missing."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.is_lost = False

    def value(self, name: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except CallFailedError as error:
            self.reasons[name] = error.reason
            self.is_lost = self.is_lost or error.code in (GPU_IS_LOST, RESET_REQUIRED)
            return None

    def spread(self, source: str, *names: str) -> None:
        reason = self.reasons.get(source, "not reported")
        self.reasons.update(dict.fromkeys((source, *names), reason))


def _utilization(nvml: Driver, handle: Any) -> int:
    percent = int(nvml.call("nvmlDeviceGetUtilizationRates", handle).gpu)
    if percent == _NO_VALUE_32:
        raise CallFailedError("not reported", None)
    return min(percent, 100)


def _processes(nvml: Driver, handle: Any) -> tuple[GpuProcess, ...]:
    listed = list(nvml.call("nvmlDeviceGetComputeRunningProcesses", handle))
    # Under MPS the first list names only the server; its clients stand in the second.
    listed += nvml.ask("nvmlDeviceGetMPSComputeRunningProcesses", handle) or []
    return _deduped((int(p.pid), _plausible(p.usedGpuMemory)) for p in listed)


def _deduped(pairs: Iterable[tuple[int, int | None]]) -> tuple[GpuProcess, ...]:
    used: dict[int, int | None] = {}
    for pid, memory in pairs:
        if pid in (0, _NO_VALUE_32):
            continue
        known = used.get(pid)
        used[pid] = memory if known is None else max(known, memory or 0)
    return tuple(GpuProcess(pid, memory) for pid, memory in used.items())


def _plausible(value: int | None) -> int | None:
    # Drivers print "unknown" as all ones, and bindings of the wrong version shift fields.
    if value is None or value == _NO_VALUE_64 or value >= _LARGEST_PLAUSIBLE_BYTES:
        return None
    return int(value)


def _all_fields(reason: str) -> dict[str, str]:
    names = (
        "memory_used_bytes",
        "memory_total_bytes",
        "memory_reserved_bytes",
        "utilization_percent",
        "temperature_celsius",
        "power_watts",
        "processes",
    )
    return dict.fromkeys(names, reason)
