"""Checks of the driver, of what CUDA sees and of the state of each GPU."""

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jupyter_mgpu import cuda
from jupyter_mgpu.diagnosis.report import Check, failed, passed, skipped
from jupyter_mgpu.nvml import NO_LIBRARY, Inventory
from jupyter_mgpu.nvml.health import PEER_OK, Health, read_health, read_peers, read_versions

_KERNEL_LOG = Path("/dev/kmsg")
_LOG_TIMEOUT_S = 1.0
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]*)\): (\d+)")
_TELLING_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_VISIBLE_DEVICES",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
)
_SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel launch waits for its end",
    "NCCL_P2P_DISABLE": "GPUs exchange data through the host's memory",
    "NCCL_SHM_DISABLE": "processes exchange data through the network",
}


def check_driver(inventory: Inventory) -> Check:
    """Look at the driver and its versions."""
    name = "driver"
    if inventory.trouble is not None:
        trouble = inventory.trouble
        end = skipped if trouble == NO_LIBRARY else failed
        return end(name, f"{trouble.why} Engines run on the CPU.", trouble.next_step)
    versions = read_versions()
    known = ".".join(map(str, versions.cuda)) if versions.cuda else "unknown"
    return passed(
        name, f"Driver {versions.driver or 'unknown'}, up to CUDA {known}, NVML {versions.nvml}."
    )


def check_state(inventory: Inventory) -> Check:
    """Look for GPUs that are lost or barred."""
    name = "GPUs"
    bad = [f"GPU {gpu.index}: {gpu.reason}" for gpu in inventory.unusable]
    if bad:
        return failed(
            name,
            f"{len(inventory.gpus)} usable, but {'; '.join(bad)}.",
            "Reboot if a GPU is lost (`dmesg | grep -i xid` says why); ask for access otherwise.",
        )
    if not inventory.gpus:
        return skipped(name, "There is none.")
    models = ", ".join(f"{gpu.label} {gpu.name}" for gpu in inventory.gpus)
    return passed(name, f"{models}.")


def check_variables(inventory: Inventory) -> Check:
    """Look at the environment variables that CUDA and NCCL read."""
    name = "CUDA variables"
    here = {key: os.environ[key] for key in _TELLING_VARIABLES if key in os.environ}
    told = ", ".join(f"{key}={value}" for key, value in here.items()) or "none set"
    slowing = [k for k in _SLOWING if here.get(k, "0") not in ("", "0")]
    if slowing:
        why = "; ".join(f"{key}: {_SLOWING[key]}" for key in slowing)
        return failed(name, f"{told}. {why}.", f"Unset {', '.join(slowing)}.")
    is_mixed = len({gpu.name for gpu in inventory.gpus}) > 1
    if is_mixed and here.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return failed(
            name,
            f"{told}. The GPUs differ, so `cuda:0` in this notebook may not be nvidia-smi's GPU 0 "
            "(engines are not affected).",
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID before the notebook starts.",
        )
    return passed(name, f"{told}.")


def check_count(inventory: Inventory) -> Check:
    """Compare the GPUs of NVML with those that CUDA shows under this environment."""
    name = "GPUs in CUDA"
    if not inventory.usable:
        return skipped(name, "There is no GPU.")
    (answer,) = cuda.visible_uuids([os.environ])
    if answer.uuids is None:
        return failed(
            name,
            f"CUDA does not work here: {answer.why_unknown}.",
            "Reinstall the driver, or start the container with GPU access.",
        )
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = _wanted(mask, inventory)
    finding = f"CUDA shows {len(answer.uuids)} of {len(inventory.usable)} GPUs"
    if len(answer.uuids) == wanted:
        return passed(name, f"{finding}.")
    if mask is None:
        return failed(name, f"{finding}.", "Compare `nvidia-smi -L`; reboot if a GPU is missing.")
    return failed(
        name,
        f"{finding}, but CUDA_VISIBLE_DEVICES={mask} names {wanted}.",
        "An entry that does not exist hides itself and all after it: correct the variable.",
    )


def _wanted(mask: str | None, inventory: Inventory) -> int:
    if mask is None:
        return sum(not gpu.is_divided for gpu in inventory.gpus) or 1
    # Of MIG instances CUDA shows a process the first one only.
    return 1 if "MIG-" in mask else len([entry for entry in mask.split(",") if entry.strip()])


def check_compute_mode(healths: Sequence[Health]) -> Check:
    """Look for GPUs that refuse a second process, or every process."""
    name = "compute mode"
    bad = [
        f"{health.device.label} is in mode '{health.compute_mode}'"
        for health in healths
        if health.compute_mode not in (None, "default")
    ]
    if bad:
        return failed(
            name,
            f"{'; '.join(bad)}.",
            "`sudo nvidia-smi -c 0` lets several processes use a GPU.",
        )
    return _quiet(name, [health.compute_mode for health in healths], "default")


def check_memory_errors(healths: Sequence[Health]) -> Check:
    """Look for errors of the GPUs' memory."""
    name = "GPU memory errors"
    bad = [
        f"{health.device.label}: {', '.join(found)}"
        for health in healths
        if (found := list(_memory_errors(health)))
    ]
    if bad:
        return failed(
            name,
            f"{'; '.join(bad)}.",
            "Reset or reboot to apply repairs; have the board replaced if they come back.",
        )
    return _quiet(name, [health.ecc_errors for health in healths], "none")


def _memory_errors(health: Health) -> Iterable[str]:
    if health.ecc_errors:
        yield f"{health.ecc_errors} uncorrected ECC errors since boot"
    if health.is_remap_failed:
        yield "a row could not be replaced"
    if health.is_remap_pending:
        yield "a row waits to be replaced"
    if health.is_retirement_pending:
        yield "a page waits to be retired"


def check_throttling(healths: Sequence[Health]) -> Check:
    """Look at power and heat."""
    name = "power and heat"
    bad = [
        f"{health.device.label}: {', '.join(health.slowdowns)} ({_heat(health)})"
        for health in healths
        if health.slowdowns
    ]
    if bad:
        return failed(
            name, f"{'; '.join(bad)}.", "Check cooling and power supply; the GPU is slowed down."
        )
    told = [
        f"{health.device.label} {_heat(health)}"
        f"{', at its power limit' if health.is_power_capped else ''}"
        for health in healths
    ]
    return _quiet(name, [health.slowdowns for health in healths], "; ".join(told))


def _heat(health: Health) -> str:
    heat, power, limit = (
        "n/a" if value is None else f"{value:.0f}"
        for value in (health.temperature_celsius, health.power_watts, health.power_limit_watts)
    )
    return f"{heat} C, {power} of {limit} W"


def _quiet(name: str, values: Sequence[object], finding: str) -> Check:
    if not values:
        return skipped(name, "There is no GPU.")
    if all(value is None for value in values):
        return skipped(name, "The driver does not report it.")
    return passed(name, f"{finding}.")


def check_peers(inventory: Inventory) -> Check:
    """Look whether GPUs reach each other without the host's memory."""
    name = "peer-to-peer"
    gpus = [gpu for gpu in inventory.gpus if not gpu.is_divided]
    if len(gpus) < 2:
        return skipped(name, "There are not two whole GPUs.")
    matrix = read_peers(gpus)
    words = [word for row in matrix for word in row if word is not None]
    if not words:
        return skipped(name, "The driver does not report it.")
    if all(word == PEER_OK for word in words):
        return passed(name, f"All {len(gpus)} GPUs reach each other.")
    lines = [
        f"{gpu.label}: {', '.join(word or '-' for word in row)}"
        for gpu, row in zip(gpus, matrix, strict=True)
    ]
    return failed(
        name,
        "Not all GPUs reach each other, so collectives take the way through the host:\n"
        + "\n".join(lines),
        "Nothing can be done on boards without it; else check IOMMU and ACS settings.",
    )


def check_xid() -> Check:
    """Look for the driver's error numbers in the kernel's log."""
    name = "XID errors"
    try:
        text = _read_kernel_log()
    except OSError as error:
        step = "`sudo dmesg | grep -i xid` shows it."
        return skipped(name, f"The kernel's log cannot be read ({error.strerror}).", step)
    found = sorted({f"XID {number} on {bus}" for bus, number in _XID.findall(text)})
    if found:
        return failed(
            name,
            f"Since boot: {', '.join(found)}.",
            "Look the number up in NVIDIA's XID table; 48, 63, 64, 74, 79 and 95 mean hardware.",
        )
    return passed(name, "none since boot.")


def _read_kernel_log() -> str:
    descriptor = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    parts: list[bytes] = []
    deadline_s = time.monotonic() + _LOG_TIMEOUT_S
    try:
        while time.monotonic() < deadline_s:
            try:
                parts.append(os.read(descriptor, 8192))
            except BlockingIOError:  # the end of what was logged
                break
            except BrokenPipeError:  # lines were overwritten meanwhile
                continue
            if not parts[-1]:
                break
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def checks_of_gpus(inventory: Inventory) -> list[tuple[str, Callable[[], Check]]]:
    """List the checks with their names, none of them run yet."""
    gpus = inventory.gpus

    def about_health(check: Callable[[Sequence[Health]], Check]) -> Callable[[], Check]:
        return lambda: check(read_health(gpus) if gpus else [])

    return [
        ("driver", lambda: check_driver(inventory)),
        ("GPUs", lambda: check_state(inventory)),
        ("CUDA variables", lambda: check_variables(inventory)),
        ("GPUs in CUDA", lambda: check_count(inventory)),
        ("compute mode", about_health(check_compute_mode)),
        ("GPU memory errors", about_health(check_memory_errors)),
        ("XID errors", check_xid if gpus else lambda: skipped("XID errors", "There is no GPU.")),
        ("power and heat", about_health(check_throttling)),
        ("peer-to-peer", lambda: check_peers(inventory)),
    ]
