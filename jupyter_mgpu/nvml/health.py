"""What NVML says about versions, the health of GPUs and the ways between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.devices import Device
from jupyter_mgpu.nvml.driver import Driver, driver
from jupyter_mgpu.nvml.troubles import CallFailedError, NvmlTroubleError

# nvmlComputeMode_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlGpuP2PCapsIndex_t and
# nvmlClocksEventReasons in the NVML reference.
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_UNCORRECTED, _SINCE_BOOT, _P2P_READ = 1, 0, 0
_SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "too hot (driver)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
_POWER_CAP = 0x04
_PEER_WORDS = {
    0: "ok",
    1: "no: chipset",
    2: "no: GPU",
    3: "no: different I/O hubs",
    4: "no: switched off in the driver",
    5: "no",
}
PEER_OK = "ok"


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the driver's parts; None where unknown."""

    driver: str | None = None
    nvml: str | None = None
    cuda: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one GPU; None where the driver does not say.

    Attributes:
        slowdowns: Why it runs slower than it could, in words; empty if it does not.
        is_power_capped: It runs at its power limit, as a busy GPU may.
    """

    device: Device
    compute_mode: str | None = None
    ecc_errors: int | None = None
    is_remap_pending: bool | None = None
    is_remap_failed: bool | None = None
    is_retirement_pending: bool | None = None
    slowdowns: tuple[str, ...] | None = None
    is_power_capped: bool | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None


def read_versions() -> Versions:
    """Read the versions of driver, NVML and CUDA. Never raises."""
    try:
        return driver.run(_read_versions)
    except (NvmlTroubleError, CallFailedError):
        return Versions()


def read_health(devices: Sequence[Device]) -> list[Health]:
    """Read the health of GPUs.

    Raises:
        NvmlTroubleError: If the driver does not answer.
    """
    return driver.run(lambda nvml: [_read_health(nvml, device) for device in devices])


def read_peers(devices: Sequence[Device]) -> list[list[str | None]]:
    """Read between which GPUs data can go without the host's memory.

    Returns:
        A row per device: "ok", a reason in words, or None for itself and where it is unknown.

    Raises:
        NvmlTroubleError: If the driver does not answer.
    """
    return driver.run(
        lambda nvml: [[_peer(nvml, one, other) for other in devices] for one in devices]
    )


def _read_versions(nvml: Driver) -> Versions:
    nvml.ensure_initialized()
    cuda = nvml.ask("nvmlSystemGetCudaDriverVersion")
    return Versions(
        driver=nvml.ask("nvmlSystemGetDriverVersion"),
        nvml=nvml.ask("nvmlSystemGetNVMLVersion"),
        cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
    )


def _read_health(nvml: Driver, device: Device) -> Health:
    nvml.ensure_initialized()
    handle = nvml.ask("nvmlDeviceGetHandleByUUID", device.uuid)
    if handle is None:
        return Health(device)
    mode = nvml.ask("nvmlDeviceGetComputeMode", handle)
    remapped = nvml.ask("nvmlDeviceGetRemappedRows", handle)
    retirement = nvml.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    reasons = _clock_reasons(nvml, handle)
    return Health(
        device=device,
        compute_mode=None if mode is None else COMPUTE_MODES.get(mode, str(mode)),
        ecc_errors=nvml.ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_BOOT),
        is_remap_pending=None if remapped is None else bool(remapped[2]),
        is_remap_failed=None if remapped is None else bool(remapped[3]),
        is_retirement_pending=None if retirement is None else bool(retirement),
        slowdowns=None if reasons is None else _slowdowns(reasons),
        is_power_capped=None if reasons is None else bool(reasons & _POWER_CAP),
        temperature_celsius=nvml.ask("nvmlDeviceGetTemperature", handle, 0),
        power_watts=_watts(nvml.ask("nvmlDeviceGetPowerUsage", handle)),
        power_limit_watts=_watts(nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
    )


def _clock_reasons(nvml: Driver, handle: Any) -> int | None:
    # The call was renamed with driver 535; older drivers know only the second name.
    for name in ("EventReasons", "ThrottleReasons"):
        reasons = nvml.ask(f"nvmlDeviceGetCurrentClocks{name}", handle)
        if reasons is not None:
            return int(reasons)
    return None


def throttle_words(reasons: int) -> tuple[str, ...]:
    """Say why a GPU runs slower than it could; empty if it does not."""
    capped = ("power cap",) if reasons & _POWER_CAP else ()
    return capped + _slowdowns(reasons)


def _slowdowns(reasons: int) -> tuple[str, ...]:
    return tuple(word for bit, word in _SLOWDOWNS.items() if reasons & bit)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _peer(nvml: Driver, one: Device, other: Device) -> str | None:
    if one == other:
        return None
    handles = [nvml.ask("nvmlDeviceGetHandleByUUID", device.uuid) for device in (one, other)]
    if None in handles:
        return None
    status = nvml.ask("nvmlDeviceGetP2PStatus", *handles, _P2P_READ)
    return None if status is None else _PEER_WORDS.get(status)
