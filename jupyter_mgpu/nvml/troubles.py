"""What can be wrong with the driver, and NVML's codes, in words with a next step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_mgpu.errors import MgpuError

NOT_SUPPORTED = "not supported"
_MODULE = Path("/proc/driver/nvidia/version")
_CONTROL_DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why NVML cannot answer.

    Attributes:
        why: One sentence.
        next_step: One sentence that says what to do.
    """

    why: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.why} {self.next_step}"


class NvmlTroubleError(MgpuError):
    """NVML as a whole cannot answer; the callers in this package turn it into words."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        super().__init__(str(trouble))


class CallFailedError(MgpuError):
    """One NVML call failed.

    Attributes:
        reason: A few words, such as "not supported".
        code: NVML's return code; None if the binding itself failed.
    """

    def __init__(self, reason: str, code: int | None) -> None:
        self.reason = reason
        self.code = code
        super().__init__(reason)


NO_LIBRARY = Trouble(
    "This machine has no NVIDIA driver: libnvidia-ml.so.1 was not found.",
    "Install the driver, or start the container with GPU access (docker run --gpus all).",
)
DRIVER_NOT_LOADED = Trouble(
    "The NVIDIA driver is installed, but its kernel module is not loaded.",
    "Run `sudo modprobe nvidia`, or reboot; `dmesg | grep -i nvidia` says why it fails.",
)
VERSION_MISMATCH = Trouble(
    "The NVIDIA driver and its library have different versions, as after an upgrade.",
    "Reboot the machine, or reload the nvidia kernel modules.",
)
NO_DEVICES = Trouble(
    "The NVIDIA driver is loaded, but none of its devices (/dev/nvidia*) is here.",
    "Start the container with GPU access (docker run --gpus all; in Kubernetes nvidia.com/gpu).",
)
NO_PERMISSION = Trouble(
    "This user has no permission to talk to the NVIDIA driver.",
    "Ask for access to /dev/nvidiactl (often membership of the group `video` or `render`).",
)
NO_BINDING = Trouble(
    "The Python package nvidia-ml-py is not installed.",
    "Run `pip install nvidia-ml-py`.",
)
WRONG_BINDING = Trouble(
    "Another package than nvidia-ml-py provides the module `pynvml`.",
    "Run `pip uninstall -y pynvml nvidia-ml-py3 && pip install --force-reinstall nvidia-ml-py`.",
)
ALL_LOST = Trouble(
    "A GPU of this machine is lost: it fell off the bus.",
    "Reboot the machine; `dmesg | grep -i xid` names the GPU.",
)

# Codes of nvmlReturn_t in the NVML reference; pynvml may be too old to name all of them.
INVALID, NO_SUPPORT, PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 2, 3, 4, 6, 13
GPU_IS_LOST, RESET_REQUIRED, UNKNOWN_ERROR = 15, 16, 999
_INIT_TROUBLES = {
    4: NO_PERMISSION,
    9: DRIVER_NOT_LOADED,
    12: NO_LIBRARY,
    15: ALL_LOST,
    18: VERSION_MISMATCH,
}
_NO_WAY_IN = (PERMISSION, 9, UNKNOWN_ERROR)
_CALL_REASONS = {
    NO_SUPPORT: NOT_SUPPORTED,
    PERMISSION: "no permission",
    NOT_FOUND: "not found",
    8: "insufficient external power",
    FUNCTION_NOT_FOUND: "not known to this driver",
    GPU_IS_LOST: "the GPU is lost",
    RESET_REQUIRED: "the GPU needs a reset",
    18: "driver and library have different versions",
    25: "not known to this driver",
    UNKNOWN_ERROR: "unknown error of the driver",
}


def no_answer(words: str) -> Trouble:
    """Say what to do about a driver that hangs."""
    return Trouble(
        words,
        "Look for `nvidia-smi` hanging as well; if it does, reboot the machine.",
    )


def reason_of(error: Any) -> tuple[str, int | None]:
    """Return the words and the code of an NVMLError."""
    # NVMLError is unhashable and compares badly: only its value is used.
    code = getattr(error, "value", None)
    if not isinstance(code, int):
        return str(error), None
    return _CALL_REASONS.get(code, f"NVML error {code}"), code


def init_trouble(error: CallFailedError) -> Trouble:
    """Say why NVML cannot be started."""
    if error.code in _NO_WAY_IN and is_without_devices():
        return NO_DEVICES
    if error.code in _INIT_TROUBLES:
        return _INIT_TROUBLES[error.code]
    return Trouble(
        f"The NVIDIA driver cannot be started: {error.reason}.",
        "Run `nvidia-smi` in a terminal; it should say the same.",
    )


def is_without_devices() -> bool:
    """Tell whether the driver's module is loaded, as on the host of a container without GPUs."""
    return _MODULE.exists() and not _CONTROL_DEVICE.exists()
