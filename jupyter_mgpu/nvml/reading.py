"""One reading of one device: memory, utilisation, temperature, power, processes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.devices import Device
from jupyter_mgpu.nvml.driver import Driver, driver
from jupyter_mgpu.nvml.health import throttle_words
from jupyter_mgpu.nvml.inventory import read_memory
from jupyter_mgpu.nvml.troubles import (
    GPU_IS_LOST,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN_ERROR,
    CallFailedError,
    NvmlTroubleError,
)

MILLIWATTS_PER_WATT = 1000
NOT_REPORTED = "not reported"
LOST_CODES = (GPU_IS_LOST, RESET_REQUIRED)
_NO_VALUE_64 = 2**64 - 1
_NO_VALUE_32 = 2**32 - 1
_LARGEST_PLAUSIBLE_BYTES = 2**50
# PID_MAX_LIMIT of the Linux kernel.
_LARGEST_PID = 2**22


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
        throttle: Why it runs slower than it could, in words; empty if it does not.
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
    power_limit_watts: float | None = None
    throttle: tuple[str, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """One question to the driver.

    Attributes:
        fields: The fields of a reading that it answers.
        ask: Gives one value per field, None where the driver reports none.
        every_s: How old an answer may get while a device is watched.
    """

    fields: tuple[str, ...]
    ask: Callable[[Driver, Any], tuple[Any, ...]]
    every_s: float = 0.0

    def answer(
        self, nvml: Driver, handle: Any, *, is_instance: bool
    ) -> tuple[dict[str, Any], dict[str, str], int | None]:
        """Ask the driver; only inside a job.

        Returns:
            The values, why those that are None are unknown, and NVML's code if the call failed.
        """
        try:
            values = dict(zip(self.fields, self.ask(nvml, handle), strict=True))
        except CallFailedError as error:
            reason = error.reason
            if is_instance and reason == NOT_SUPPORTED:
                reason = "not supported for a MIG instance"
            unknown = dict.fromkeys(self.fields)
            return unknown, dict.fromkeys(self.fields, reason), error.code
        return values, {name: NOT_REPORTED for name, value in values.items() if value is None}, None


def read_devices(devices: Sequence[Device]) -> list[Reading]:
    """Read every device, in the order given. Never raises."""
    try:
        return driver.run(lambda nvml: _read_all(nvml, devices))
    except (NvmlTroubleError, CallFailedError) as error:
        trouble = error.trouble.why if isinstance(error, NvmlTroubleError) else error.reason
        return [Reading(device.uuid, reasons=all_unknown(trouble)) for device in devices]


def find_handle(nvml: Driver, device: Device) -> Any:
    """Look a device up by its UUID: the same index need not be the same GPU for ever.

    Raises:
        CallFailedError: If it is not there; `is_loss` tells whether it is lost.
    """
    return nvml.call("nvmlDeviceGetHandleByUUID", device.uuid)


def is_loss(error: CallFailedError) -> bool:
    """Tell whether looking a device up failed because it fell off the bus."""
    return error.code in (*LOST_CODES, NOT_FOUND, UNKNOWN_ERROR)


def all_unknown(reason: str) -> dict[str, str]:
    """Give one reason for every field."""
    return dict.fromkeys((name for metric in METRICS for name in metric.fields), reason)


def _read_all(nvml: Driver, devices: Sequence[Device]) -> list[Reading]:
    nvml.ensure_initialized()
    return [_read(nvml, device) for device in devices]


def _read(nvml: Driver, device: Device) -> Reading:
    try:
        handle = find_handle(nvml, device)
    except CallFailedError as error:
        return Reading(device.uuid, reasons=all_unknown(error.reason), is_lost=is_loss(error))
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    codes = []
    for metric in METRICS:
        told, why, code = metric.answer(nvml, handle, is_instance=device.mig is not None)
        values |= told
        reasons |= why
        codes.append(code)
    is_lost = any(code in LOST_CODES for code in codes)
    return Reading(device.uuid, **values, reasons=reasons, is_lost=is_lost)


def _memory(nvml: Driver, handle: Any) -> tuple[int | None, int, int | None]:
    memory = read_memory(nvml, handle)
    total = _plausible(memory.total)
    if not total:
        raise CallFailedError(NOT_REPORTED, None)
    return _plausible(memory.used), total, _plausible(getattr(memory, "reserved", None))


def _utilization(nvml: Driver, handle: Any) -> tuple[int | None]:
    percent = int(nvml.call("nvmlDeviceGetUtilizationRates", handle).gpu)
    return (None if percent == _NO_VALUE_32 else min(percent, 100),)


def _temperature(nvml: Driver, handle: Any) -> tuple[int]:
    return (int(nvml.call("nvmlDeviceGetTemperature", handle, 0)),)


def _power(nvml: Driver, handle: Any) -> tuple[float]:
    return (nvml.call("nvmlDeviceGetPowerUsage", handle) / MILLIWATTS_PER_WATT,)


def _power_limit(nvml: Driver, handle: Any) -> tuple[float]:
    return (nvml.call("nvmlDeviceGetEnforcedPowerLimit", handle) / MILLIWATTS_PER_WATT,)


def _throttle(nvml: Driver, handle: Any) -> tuple[tuple[str, ...]]:
    # The call was renamed with driver 535; older drivers know only the second name.
    try:
        reasons = nvml.call("nvmlDeviceGetCurrentClocksEventReasons", handle)
    except CallFailedError:
        reasons = nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return (throttle_words(int(reasons)),)


def _processes(nvml: Driver, handle: Any) -> tuple[tuple[GpuProcess, ...]]:
    listed = list(nvml.call("nvmlDeviceGetComputeRunningProcesses", handle))
    # Under MPS the first list names only the server; its clients stand in the second.
    listed += nvml.ask("nvmlDeviceGetMPSComputeRunningProcesses", handle) or []
    found = _deduped((int(p.pid), _plausible(p.usedGpuMemory)) for p in listed)
    # Drivers 535.43 to 535.86 and some bindings do not agree on how the list is laid out.
    if any(process.pid > _LARGEST_PID for process in found):
        raise CallFailedError("the driver lists processes that cannot exist", None)
    return (found,)


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


METRICS = (
    Metric(("memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"), _memory),
    Metric(("utilization_percent",), _utilization),
    Metric(("temperature_celsius",), _temperature),
    Metric(("power_watts",), _power),
    # The driver holds a lock of the whole machine for milliseconds while it lists processes.
    Metric(("processes",), _processes, every_s=3.0),
    Metric(("throttle",), _throttle, every_s=3.0),
    Metric(("power_limit_watts",), _power_limit, every_s=30.0),
)
"""Everything that is asked about a device."""
