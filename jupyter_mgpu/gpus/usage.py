"""Who uses which device: the driver's processes matched with leases and with this notebook."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jupyter_mgpu import cuda, host
from jupyter_mgpu.devices import Device
from jupyter_mgpu.leases import PATHS_VARIABLE, Lease
from jupyter_mgpu.nvml import GpuProcess, Reading, read_devices

MEMORY_OF_AN_IDLE_GPU_BYTES = 500 * 2**20
"""Below this a GPU without listed processes counts as free: drivers keep some for themselves."""

_BYTES_PER_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Notebook:
    """The process whose GPUs count as free for its own pools.

    Attributes:
        pid: The process.
        contexts: The GPUs on which it has a CUDA context, as `cuda` names them.
    """

    pid: int
    contexts: tuple[str, ...]


def this_notebook() -> Notebook:
    """Return this process."""
    return Notebook(os.getpid(), tuple(cuda.uuids_with_own_context()))


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process on a device, or a lease whose process the driver does not show.

    Attributes:
        pid: As the driver knows it; the pool's process for a bare lease.
        is_visible: False where the pid belongs to a namespace that cannot be seen from here.
        is_this_notebook: It is this process or a child of it.
        lease: The engine's hold that it belongs to.
        words: Who it is, as was found out on another host.
    """

    pid: int
    name: str | None = None
    user: str | None = None
    memory_used_bytes: int | None = None
    is_visible: bool = True
    is_this_notebook: bool = False
    lease: Lease | None = None
    words: str | None = None

    def __str__(self) -> str:
        if self.words is not None:
            return self.words
        if self.lease is not None:
            return self.lease.holder
        if self.is_this_notebook:
            return f"this notebook (pid {self.pid})"
        if not self.is_visible:
            return f"a process not visible from here (pid {self.pid} on the host)"
        return f"{self.name or 'a process'} (pid {self.pid}, user {self.user or 'unknown'})"


@dataclass(frozen=True, slots=True)
class Usage:
    """One device with its reading and who is on it."""

    device: Device
    reading: Reading
    users: tuple[GpuUser, ...]

    @property
    def holders(self) -> list[str]:
        """Who keeps it from being free; empty for a free device."""
        others = [str(user) for user in self.users if not user.is_this_notebook]
        if others or self.users:
            return list(dict.fromkeys(others))
        used = self.reading.memory_used_bytes
        if used is not None and used >= MEMORY_OF_AN_IDLE_GPU_BYTES:
            return [f"a process that the driver does not name ({used / _BYTES_PER_GIB:.1f} GiB)"]
        return []

    @property
    def is_used_by_this_notebook(self) -> bool:
        """This notebook's own process has something on it."""
        return any(user.is_this_notebook and user.lease is None for user in self.users)

    @property
    def clause(self) -> str:
        """Say who uses it: `GPU 2 is used by python (pid 4242, user bob)`."""
        return f"{self.device.label} is used by {' and '.join(self.holders)}"


def read_usages(
    devices: Sequence[Device], leases: Sequence[Lease], notebook: Notebook | None = None
) -> list[Usage]:
    """Read every device; match its processes with leases and with a notebook, this by default."""
    own = notebook or this_notebook()
    return [
        Usage(device, reading, users_on(device, reading.processes or (), leases, own))
        for device, reading in zip(devices, read_devices(devices), strict=True)
    ]


def users_on(
    device: Device,
    processes: Iterable[GpuProcess],
    leases: Sequence[Lease],
    own: Notebook,
) -> tuple[GpuUser, ...]:
    """Match the processes on a device with leases and with this notebook.

    Args:
        device: Where they run.
        processes: As the driver lists them.
        leases: All live leases of this host.
        own: The notebook.
    """
    held = [lease for lease in leases if lease.gpu_uuid == device.uuid]
    users = [_identify(process, held, own.pid) for process in processes]
    if cuda.bare_uuid(device.uuid) in own.contexts:
        users = _with_own_context(users, own.pid)
    seen = {user.lease for user in users}
    bare = [lease for lease in held if lease not in seen]
    strangers = [user for user in users if not user.is_visible and not user.is_this_notebook]
    if bare and len(bare) == len(strangers):
        # In a container: the engines themselves, under the host's pids.
        known = [replace(user, lease=lease) for user, lease in zip(strangers, bare, strict=True)]
        return (*(user for user in users if user not in strangers), *known)
    return (*users, *(GpuUser(pid=lease.pid, user=lease.user, lease=lease) for lease in bare))


def _with_own_context(users: list[GpuUser], own_pid: int) -> list[GpuUser]:
    """Find the notebook among pids of the host, where it has a context for certain."""
    if any(user.is_this_notebook for user in users):
        return users
    strangers = [user for user in users if not user.is_visible]
    own = GpuUser(pid=own_pid, is_this_notebook=True)
    if len(strangers) == 1:
        users = [user for user in users if user is not strangers[0]]
        own = GpuUser(
            pid=strangers[0].pid,
            memory_used_bytes=strangers[0].memory_used_bytes,
            is_this_notebook=True,
        )
    return [own, *users]


def _identify(process: GpuProcess, held: Sequence[Lease], own_pid: int) -> GpuUser:
    lease = _lease_named_by(process.pid, held)
    is_here = lease is not None or process.pid == own_pid or _is_gpu_process(process.pid)
    known = _look_up(process.pid) if is_here else None
    if known is None:
        return _stranger(process)
    name, user, lineage = known
    lease = lease or _only_lease_of(user, lineage, held, own_pid)
    return GpuUser(
        pid=process.pid,
        name=name,
        user=user,
        memory_used_bytes=process.memory_used_bytes,
        is_this_notebook=lease is None and own_pid in lineage,
        lease=lease,
    )


def _look_up(pid: int) -> tuple[str, str | None, list[int]] | None:
    """Find the name, the user, and the pids from the process up to the first; None if gone."""
    import psutil  # here, since it costs a good part of the package's import time

    try:
        found = psutil.Process(pid)
        with found.oneshot():
            name = str(found.name())
            lineage = [pid, *(parent.pid for parent in found.parents())]
        return name, str(found.username()), lineage
    except (psutil.Error, KeyError):
        return None


def _stranger(process: GpuProcess) -> GpuUser:
    return GpuUser(pid=process.pid, memory_used_bytes=process.memory_used_bytes, is_visible=False)


def _is_gpu_process(pid: int) -> bool:
    """Tell whether a pid from the driver is the process that bears this number here.

    In a container the driver's pids are the host's, and the same number may be somebody else.
    """
    if host.is_host_pid_namespace():
        return True
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except PermissionError:
        return True  # another user's: nothing speaks against it
    except OSError:
        return False
    return "libcuda" in maps or "/dev/nvidia" in maps


def _lease_named_by(pid: int, held: Sequence[Lease]) -> Lease | None:
    named = _leases_named_by(pid)
    return next((lease for lease in held if str(lease.path) in named), None)


def _only_lease_of(
    user: str | None, lineage: list[int], held: Sequence[Lease], own_pid: int
) -> Lease | None:
    # Another user's environment cannot be read: one lease of that user leaves no doubt.
    theirs = [lease for lease in held if lease.user == user]
    return theirs[0] if len(theirs) == 1 and own_pid not in lineage else None


def _leases_named_by(pid: int) -> list[str]:
    try:
        environment = Path(f"/proc/{pid}/environ").read_text(errors="surrogateescape")
    except OSError:
        return []
    prefix = f"{PATHS_VARIABLE}="
    named = [entry for entry in environment.split("\0") if entry.startswith(prefix)]
    return named[0].removeprefix(prefix).split(os.pathsep) if named else []
