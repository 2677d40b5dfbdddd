"""Who uses which GPU, without asking again about processes and leases that have not changed."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from jupyter_mgpu import cuda
from jupyter_mgpu.devices import Device
from jupyter_mgpu.errors import LeaseError
from jupyter_mgpu.gpus.usage import GpuUser, Usage, this_notebook, users_on
from jupyter_mgpu.leases import Lease, LeaseBook
from jupyter_mgpu.monitor.records import GpuUse
from jupyter_mgpu.nvml import GpuProcess, Reading

LEASES_EVERY_S = 10.0
"""How long the end of an engine may go unnoticed: a lease ends without any change of its file."""


class UserFinder:
    """Finds the users of GPUs again and again."""

    def __init__(self) -> None:
        self._leases = _LeaseReader()
        self._found: dict[str, _Found] = {}

    def find(
        self, devices: Sequence[Device], readings: Sequence[Reading], now_s: float
    ) -> list[tuple[GpuUse, ...] | None]:
        """Find the users of each device; None where nobody can tell."""
        leases = self._leases.read(now_s) if devices else ()
        return [
            self._users(device, reading, leases)
            for device, reading in zip(devices, readings, strict=True)
        ]

    def _users(
        self, device: Device, reading: Reading, leases: tuple[Lease, ...]
    ) -> tuple[GpuUse, ...] | None:
        found = self._found.get(device.uuid)
        if found is None or found.processes is not reading.processes or found.leases is not leases:
            found = self._found[device.uuid] = _look(device, reading.processes, leases, found)
        return found.uses if found.uses != () else _unnamed(device, reading)


@dataclass(frozen=True, slots=True)
class _Found:
    """The users of one device, and from what they were found."""

    processes: tuple[GpuProcess, ...] | None
    leases: tuple[Lease, ...]
    key: tuple[Any, ...]
    users: tuple[GpuUser, ...]
    uses: tuple[GpuUse, ...] | None


def _look(
    device: Device,
    processes: tuple[GpuProcess, ...] | None,
    leases: tuple[Lease, ...],
    before: _Found | None,
) -> _Found:
    own = this_notebook()
    key = (*map(_identity, processes or ()), leases, cuda.bare_uuid(device.uuid) in own.contexts)
    if before is not None and before.key == key:
        memory = {process.pid: process.memory_used_bytes for process in processes or ()}
        users = tuple(_with_memory(user, memory) for user in before.users)
    else:
        users = users_on(device, processes or (), leases, own)
    uses = None if processes is None and not users else tuple(map(_use, users))
    return _Found(processes, leases, key, users, uses)


def _identity(process: GpuProcess) -> tuple[int, float | None, bool]:
    started = None
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).create_time()
    return process.pid, started, process.memory_used_bytes is None


def _with_memory(user: GpuUser, memory: dict[int, int | None]) -> GpuUser:
    # A bare lease has no memory, though the pid of its pool may be in the list.
    if user.memory_used_bytes is None:
        return user
    return replace(user, memory_used_bytes=memory[user.pid])


def _unnamed(device: Device, reading: Reading) -> tuple[GpuUse, ...]:
    if device.is_divided:
        return ()
    holders = Usage(device, reading, ()).holders
    return tuple(
        GpuUse(words, None, memory_used_bytes=reading.memory_used_bytes) for words in holders
    )


def _use(user: GpuUser) -> GpuUse:
    lease = user.lease
    return GpuUse(
        words=str(user),
        pid=user.pid,
        user=user.user or (lease.user if lease else None),
        pool=lease.pool if lease else None,
        rank=lease.rank if lease else None,
        memory_used_bytes=user.memory_used_bytes,
        is_this_notebook=user.is_this_notebook,
    )


class _LeaseReader:
    """Reads the leases when their folder has changed, and now and then anyway."""

    def __init__(self) -> None:
        self._book: LeaseBook | None = None
        self._leases: tuple[Lease, ...] = ()
        self._changed_ns = -1
        self._due_s = 0.0

    def read(self, now_s: float) -> tuple[Lease, ...]:
        with contextlib.suppress(LeaseError, OSError):
            if self._book is None:
                self._book = LeaseBook()
            changed_ns = self._book.folder.stat().st_mtime_ns
            if changed_ns != self._changed_ns or now_s >= self._due_s:
                leases = tuple(self._book.live())
                if leases != self._leases:
                    self._leases = leases
                self._changed_ns, self._due_s = changed_ns, now_s + LEASES_EVERY_S
        return self._leases
