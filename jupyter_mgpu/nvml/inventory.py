"""Which GPUs this machine has, or why it has none."""

from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.devices import Device, DeviceIndex, MigPlace
from jupyter_mgpu.nvml.driver import Driver, driver
from jupyter_mgpu.nvml.troubles import (
    GPU_IS_LOST,
    RESET_REQUIRED,
    UNKNOWN_ERROR,
    CallFailedError,
    NvmlTroubleError,
    Trouble,
)

MEMORY_INFO_V2 = 0x02000028
NO_GPUS = Trouble(
    "The NVIDIA driver works, but it shows no GPU.",
    "Check `lspci | grep -i nvidia`, and in a container NVIDIA_VISIBLE_DEVICES.",
)


@dataclass(frozen=True, slots=True)
class UnusableGpu:
    """A GPU that the driver counts but that cannot be used.

    Attributes:
        uuid: None where it was never read.
        reason: A few words, such as "the GPU is lost" or "no permission".
        is_lost: It fell off the bus or waits for a reset.
    """

    index: DeviceIndex
    uuid: str | None
    name: str | None
    reason: str
    is_lost: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """What NVML says about this machine's GPUs.

    Attributes:
        gpus: Whole GPUs in NVML's order, divided ones included.
        instances: MIG instances, in the order of their GPUs.
        unusable: GPUs that are lost or barred.
        trouble: Why there is nothing to use; None where there is.
    """

    gpus: tuple[Device, ...] = ()
    instances: tuple[Device, ...] = ()
    unusable: tuple[UnusableGpu, ...] = ()
    trouble: Trouble | None = None
    driver_version: str | None = None

    @property
    def devices(self) -> tuple[Device, ...]:
        """Everything that can be named: whole GPUs, then MIG instances."""
        return self.gpus + self.instances

    @property
    def usable(self) -> tuple[Device, ...]:
        """What engines can be given: undivided GPUs and MIG instances, in NVML's order."""
        found: list[Device] = []
        for gpu in self.gpus:
            if gpu.is_divided:
                found += [i for i in self.instances if i.mig and i.mig.parent_uuid == gpu.uuid]
            else:
                found.append(gpu)
        return tuple(found)


# UUID and name of a GPU that answered once, so that it can still be named when it is lost.
_seen: dict[DeviceIndex, tuple[str, str]] = {}


def read_inventory() -> Inventory:
    """List the GPUs of this machine. Never raises and never waits for longer than a time-out."""
    try:
        return driver.run(list_gpus)
    except NvmlTroubleError as error:
        return Inventory(trouble=error.trouble)
    except CallFailedError as error:
        return Inventory(
            trouble=Trouble(
                f"The NVIDIA driver cannot list its GPUs: {error.reason}.",
                "Run `nvidia-smi` in a terminal; it should say the same.",
            )
        )


def list_gpus(nvml: Driver) -> Inventory:
    """List the GPUs; only inside a job.

    Raises:
        NvmlTroubleError: If the driver cannot be used.
        CallFailedError: If it cannot count its GPUs.
    """
    nvml.ensure_initialized()
    gpus: list[Device] = []
    instances: list[Device] = []
    unusable: list[UnusableGpu] = []
    for number in range(nvml.call("nvmlDeviceGetCount")):
        index = DeviceIndex(number)
        try:
            handle = nvml.call("nvmlDeviceGetHandleByIndex", number)
            gpu = _read_gpu(nvml, handle, index)
        except CallFailedError as error:
            unusable.append(_unusable(index, error))
            continue
        gpus.append(gpu)
        if gpu.is_divided:
            instances += _read_instances(nvml, handle, gpu)
    return Inventory(
        gpus=tuple(gpus),
        instances=tuple(instances),
        unusable=tuple(unusable),
        trouble=_trouble(gpus, unusable),
        driver_version=nvml.ask("nvmlSystemGetDriverVersion"),
    )


def _read_gpu(nvml: Driver, handle: Any, index: DeviceIndex) -> Device:
    uuid = str(nvml.call("nvmlDeviceGetUUID", handle))
    name = str(nvml.ask("nvmlDeviceGetName", handle) or "NVIDIA GPU")
    _seen[index] = (uuid, name)
    mig_mode = nvml.ask("nvmlDeviceGetMigMode", handle)
    pci = nvml.ask("nvmlDeviceGetPciInfo", handle)
    return Device(
        index=index,
        uuid=uuid,
        name=name,
        memory_total_bytes=read_memory_total(nvml, handle),
        compute_capability=nvml.ask("nvmlDeviceGetCudaComputeCapability", handle),
        bus_id=None if pci is None else _text(pci.busId),
        is_divided=bool(mig_mode and mig_mode[0]),
    )


def _read_instances(nvml: Driver, handle: Any, gpu: Device) -> list[Device]:
    limit = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    found: list[Device] = []
    for position in range(limit):
        part = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, position)
        uuid = None if part is None else nvml.ask("nvmlDeviceGetUUID", part)
        if uuid is not None:
            found.append(_instance(nvml, part, str(uuid), position, gpu))
    return found


def _instance(nvml: Driver, handle: Any, uuid: str, position: int, gpu: Device) -> Device:
    if gpu.index is None:
        raise TypeError("a MIG instance cannot be divided")
    return Device(
        index=None,
        uuid=uuid,
        name=str(nvml.ask("nvmlDeviceGetName", handle) or gpu.name),
        memory_total_bytes=read_memory_total(nvml, handle),
        compute_capability=gpu.compute_capability,
        bus_id=gpu.bus_id,
        mig=MigPlace(
            parent_index=gpu.index,
            parent_uuid=gpu.uuid,
            position=position,
            gpu_instance=nvml.ask("nvmlDeviceGetGpuInstanceId", handle),
            compute_instance=nvml.ask("nvmlDeviceGetComputeInstanceId", handle),
        ),
    )


def read_memory(nvml: Driver, handle: Any) -> Any:
    """Read memory as the newer call reports it, or as the older one does.

    Raises:
        CallFailedError: If neither is supported.
    """
    version = nvml.constant("nvmlMemory_v2", MEMORY_INFO_V2)
    try:
        return nvml.call("nvmlDeviceGetMemoryInfo", handle, version)
    except CallFailedError:
        return nvml.call("nvmlDeviceGetMemoryInfo", handle)


def read_memory_total(nvml: Driver, handle: Any) -> int | None:
    """Read the size of the memory; None where it is not reported, as with unified memory."""
    try:
        return int(read_memory(nvml, handle).total) or None
    except CallFailedError:
        return None


def _unusable(index: DeviceIndex, error: CallFailedError) -> UnusableGpu:
    uuid, name = _seen.get(index, (None, None))
    # A GPU off the bus answers "lost" or, on some drivers, "unknown error".
    is_lost = error.code in (GPU_IS_LOST, RESET_REQUIRED, UNKNOWN_ERROR)
    return UnusableGpu(index, uuid, name, error.reason, is_lost)


def _trouble(gpus: list[Device], unusable: list[UnusableGpu]) -> Trouble | None:
    if gpus:
        return None
    if not unusable:
        return NO_GPUS
    told = ", ".join(f"GPU {gpu.index}: {gpu.reason}" for gpu in unusable)
    return Trouble(
        f"None of this machine's GPUs can be used ({told}).",
        "Reboot if they are lost; ask for access if it is a permission.",
    )


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
