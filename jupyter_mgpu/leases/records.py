"""The record of one lease, and the claim that holds the records of one engine."""

import contextlib
import getpass
import json
import os
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from jupyter_mgpu.leases import locks

_LARGEST_RECORD_BYTES = 64 * 1024
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Lease:
    """One engine's hold on one GPU.

    Attributes:
        pid: The process that started the engine, usually a kernel.
        started: When it was claimed, ISO 8601 in UTC.
        path: The record file; None before it is written.
    """

    gpu_uuid: str
    user: str
    pid: int
    pool: str
    rank: int
    notebook: str | None
    kernel_id: str | None
    started: str
    path: Path | None = None

    @property
    def holder(self) -> str:
        """Who holds it, as messages say it."""
        notebook = f", notebook {self.notebook}" if self.notebook else ""
        return f"pool '{self.pool}' rank {self.rank} (user {self.user}, pid {self.pid}{notebook})"


class Claim:
    """The records of one engine, held by this process until released or dropped.

    Keep it for as long as the engine may live: a forgotten claim gives its GPUs back.
    """

    def __init__(self) -> None:
        self.leases: tuple[Lease, ...] = ()
        self._descriptors: list[int] = []
        forgotten = weakref.finalize(self, _release, self._descriptors, os.getpid())
        forgotten.atexit = False  # the end of the process unlocks anyway

    def add(self, lease: Lease, descriptor: int) -> None:
        """Take in a record and the descriptor that locks it."""
        self.leases += (lease,)
        self._descriptors.append(descriptor)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The record files, for the engine's watchdog to lock."""
        return tuple(lease.path for lease in self.leases if lease.path is not None)

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The GPUs that it holds."""
        return tuple(lease.gpu_uuid for lease in self.leases)

    def release_own_locks(self) -> None:
        """Leave the records to the engine's watchdog. Can be called twice."""
        _release(self._descriptors, self.leases[0].pid if self.leases else os.getpid())

    def drop(self, patience_s: float = 0.0) -> None:
        """Give the GPUs back. Records of an engine that still lives stay until it ends.

        Args:
            patience_s: How long to wait for the end of an engine that is about to end.
        """
        self.release_own_locks()
        deadline_s = time.monotonic() + patience_s
        left = self.paths
        while left := tuple(path for path in left if not _is_removed(path)):
            if time.monotonic() >= deadline_s:
                return
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


def _is_removed(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return locks.remove_if_dead(path)
    return True


def _release(descriptors: list[int], pid: int) -> None:
    # A forked child shares the locks of its parent: it must not undo them.
    if pid == os.getpid():
        while descriptors:
            locks.release(descriptors.pop())


def read_lease(path: Path) -> Lease | None:
    """Read a record; None where it is gone or not one of ours."""
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(_LARGEST_RECORD_BYTES))
            owner = os.fstat(file.fileno()).st_uid
        return Lease(
            gpu_uuid=str(record["gpu_uuid"]),
            user=_user_of(owner) or str(record["user"]),
            pid=int(record["pid"]),
            pool=str(record["pool"]),
            rank=int(record["rank"]),
            notebook=record.get("notebook"),
            kernel_id=record.get("kernel_id"),
            started=str(record["started"]),
            path=path,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def user_name() -> str:
    """Name the user of this process, also where no account database knows the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _user_of(number: int) -> str | None:
    # The file's owner cannot be forged; the record's own words can.
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return None
