"""What this machine and its container allow: cores, memory, processes."""

import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BYTES_PER_GIB = 2**30
MOST_CPU_ENGINES = 8

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
# Version 1 writes "no limit" as a huge number rounded to pages.
_UNLIMITED_BYTES = 2**60
# The inode of the first pid namespace is a constant of the Linux kernel (PROC_PID_INIT_INO).
_HOST_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class CpuCount:
    """How many CPU engines fit, and the sentence that says why."""

    num_engines: int
    reason: str


def default_cpu_count() -> CpuCount:
    """Count the engines that cores, affinity, container quota and memory allow."""
    limits = [(os.cpu_count() or 1, "cores"), (MOST_CPU_ENGINES, "the most by default")]
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        limits.append((len(os.sched_getaffinity(0)), "cores that this process may use"))
    quota = cpu_quota()
    if quota is not None:
        limits.append((max(1, math.ceil(quota)), "cores of the container's quota"))
    free_gib = available_memory_bytes() / BYTES_PER_GIB
    limits.append((max(1, int(free_gib)), f"for {free_gib:.1f} GiB of free memory"))
    number, why = min(limits, key=lambda limit: limit[0])
    engines = "engine" if number == 1 else "engines"
    if number == 1:
        why = why.replace("cores", "core", 1)
    return CpuCount(number, f"{number} CPU {engines} ({number} {why}).")


def num_cores() -> int:
    """Count the cores that this process may keep busy."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, int(min(usable or 1, cpu_quota() or math.inf)))


def cpu_quota() -> float | None:
    """Read how many cores' worth of time the cgroups grant; None without a limit."""
    quotas = [quota for folder in _own_folders("cpu") if (quota := _cpu_quota(folder))]
    return min(quotas, default=None)


def memory_limit_bytes() -> int | None:
    """Read the smallest memory limit of the cgroups; None without a limit."""
    limits = [pair[0] for folder in _own_folders("memory") if (pair := _memory(folder))]
    return min(limits, default=None)


def available_memory_bytes() -> int:
    """Read how much memory can still be had, in the container as well as on the machine."""
    used, total = memory_bytes()
    return total - used


def memory_bytes() -> tuple[int, int]:
    """Read how much memory cannot be had any more, and how much there is, in the container's share.

    What is only cached counts as free.
    """
    import psutil  # here, since it costs a good part of the package's import time

    machine = psutil.virtual_memory()
    in_groups = list(filter(None, map(_memory, _own_folders("memory"))))
    total = min([int(machine.total), *(limit for limit, _ in in_groups)])
    free = min([int(machine.available), *(limit - used for limit, used in in_groups)])
    return total - max(0, min(free, total)), total


def cpu_time_s() -> tuple[float, float] | None:
    """Read the CPU time used under the smallest quota, and this quota in cores.

    None without a quota, and where the cgroup does not count.
    """
    found = [(quota, folder) for folder in _own_folders("cpu") if (quota := _cpu_quota(folder))]
    if not found:
        return None
    quota, folder = min(found)
    used_s = _cpu_time_s(folder)
    return None if used_s is None else (used_s, quota)


def pids_limit() -> int | None:
    """Read how many processes and threads the cgroups allow; None without a limit."""
    limits = [n for folder in _own_folders("pids") if (n := _number(folder / "pids.max"))]
    return min(limits, default=None)


def is_host_pid_namespace() -> bool:
    """Tell whether pids of this process are those that the driver reports."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _HOST_PID_NAMESPACE
    except OSError:
        return False


@functools.cache
def boot_id() -> str | None:
    """Return what the system calls its present run, which no other machine calls its own."""
    return _text(Path("/proc/sys/kernel/random/boot_id"))


def _own_folders(controller: str) -> Iterator[Path]:
    """Yield the cgroup folders that bind this process, innermost first, of both versions."""
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount = _CGROUP_ROOT
        elif controller in controllers.split(","):
            mount = _CGROUP_ROOT / controller
        else:
            continue
        inner = mount / path.lstrip("/")
        # In a container the path is often the host's and does not exist: only the root does.
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount))


def _cpu_quota(folder: Path) -> float | None:
    text = _text(folder / "cpu.max")
    if text is not None:
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    quota_us, period_us = (_number(folder / f"cpu.cfs_{part}_us") for part in ("quota", "period"))
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _cpu_time_s(folder: Path) -> float | None:
    for line in (_text(folder / "cpu.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return int(value) / 1e6
    used_ns = _number(folder / "cpuacct.usage")
    return None if used_ns is None else used_ns / 1e9


def _memory(folder: Path) -> tuple[int, int] | None:
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit = _number(folder / limit_name)
        if limit is not None and limit < _UNLIMITED_BYTES:
            return limit, _used(folder, _number(folder / used_name) or 0)
    return None


def _used(folder: Path, used: int) -> int:
    # Cached file pages count as used there, but the kernel gives them back when asked.
    for line in (_text(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return max(0, used - int(value))
    return used


def _number(path: Path) -> int | None:
    try:
        return int(_text(path) or "")
    except ValueError:  # "max", or no such file
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
