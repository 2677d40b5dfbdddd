"""Whether this machine's GPUs sleep, so that watching does not wake them."""

from collections.abc import Iterator
from pathlib import Path

from jupyter_mgpu.nvml.troubles import Trouble

ASLEEP = Trouble(
    "The NVIDIA GPU of this machine sleeps to save power.",
    "Its values come when something uses it; `nvidia-smi` wakes it.",
)
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY_CLASS = "0x10de", "0x03"


def are_all_asleep() -> bool:
    """Tell whether there are NVIDIA GPUs and all of them sleep. Wakes none."""
    states = list(_power_states())
    return bool(states) and all(state == "suspended" for state in states)


def _power_states() -> Iterator[str]:
    for device in _PCI_DEVICES.glob("*"):
        is_gpu = _text(device / "class").startswith(_DISPLAY_CLASS)
        if is_gpu and _text(device / "vendor") == _NVIDIA:
            yield _text(device / "power" / "runtime_status")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
