"""No two kept pools of one name: a lock that the keeper holds, and that ends with it."""

import contextlib
import hashlib
import socket
from pathlib import Path

from jupyter_mgpu.errors import AttachError, MgpuError
from jupyter_mgpu.leases import locks
from jupyter_mgpu.owner import records

TAKE_S = 2.0
"""A pool that ends gives its name back so soon after its record."""


class NameLock:
    """Takes the name of a kept pool, for this user and host.

    Args:
        name: The pool's name.
        holder: The kernel that asks for it, in words, for the one that comes too late.

    Raises:
        AttachError: If another keeper has the name; it says for whom.
        MgpuError: If the runtime folder has no locks.
    """

    def __init__(self, name: str, holder: str) -> None:
        # Hosts may share the folder, and a name may have any characters.
        key = hashlib.sha256(f"{socket.gethostname()}/{name}".encode()).hexdigest()[:16]
        self._path: Path = records.folder() / f"{key}.name"
        try:
            descriptor = locks.try_exclusively(self._path, TAKE_S)
        except OSError as error:  # some filesystems of clusters are mounted without locks
            raise MgpuError(
                f"A kept pool {name!r} was asked for, but its name cannot be locked in "
                f"{self._path.parent}: {error.strerror} (flock). Set JUPYTER_RUNTIME_DIR to a "
                "folder on a local disk before Jupyter is started, or leave --keep out."
            ) from error
        if descriptor is None:
            raise AttachError(
                f"The kept pool {name!r} starts or ends in this moment, for {self._holder()}, and "
                "one kernel at a time can use it. Try it again, or choose another --name."
            )
        self._descriptor: int | None = descriptor
        self._path.write_text(holder)

    def _holder(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if found := self._path.read_text():
                return found
        return "another kernel"

    def release(self) -> None:
        """Give the name back; harmless when that was done."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._path.unlink(missing_ok=True)
            locks.release(descriptor)
