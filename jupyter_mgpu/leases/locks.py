"""File locks whose holders may belong to any user of this host."""

import contextlib
import os
import time
from pathlib import Path

from jupyter_mgpu.errors import LeaseError

try:
    import fcntl
except ImportError:  # Windows, where pools have CPU engines only
    fcntl = None  # type: ignore[assignment]

_FILE_MODE = 0o644
_POLL_S = 0.02


def are_available() -> bool:
    """Tell whether this platform has such locks."""
    return fcntl is not None


def share(descriptor: int) -> None:
    """Take a lock that several may hold and that shows a record to be alive."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def release(descriptor: int) -> None:
    """Give a lock back, also where a forked child holds a copy of the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def lock_exclusively(path: Path, timeout: float) -> int:
    """Wait for the lock of a file that nobody ever writes, and return its descriptor.

    Raises:
        LeaseError: If another process has it all the time.
    """
    descriptor = try_exclusively(path, timeout)
    if descriptor is None:
        raise LeaseError(
            f"Another pool has been choosing GPUs for {timeout:g} s. "
            f"Try again; `fuser -v {path}` names the process."
        )
    return descriptor


def try_exclusively(path: Path, timeout: float) -> int | None:
    """Wait for the lock of a file; None if another process has it all the time."""
    deadline_s = time.monotonic() + timeout
    while True:
        descriptor = _open_lock_file(path)
        try:
            if _try_lock(descriptor, fcntl.LOCK_EX) and _is_still_at(path, descriptor):
                return descriptor
        except BaseException:  # an interrupt must not keep the lock from everybody else
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() > deadline_s:
            return None
        time.sleep(_POLL_S)


def _open_lock_file(path: Path) -> int:
    while True:
        # Without O_CREAT first: fs.protected_regular forbids it on files of other users. An
        # exclusive lock needs no write access, but on NFS.
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with contextlib.suppress(FileExistsError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(path, flags, _FILE_MODE)
            os.fchmod(descriptor, _FILE_MODE)
            return descriptor


def _is_still_at(path: Path, descriptor: int) -> bool:
    # A cleaner of temporary files may have removed the file that we locked.
    with contextlib.suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_if_dead(path: Path) -> bool:
    """Tell whether a record is dead or gone; remove it if this user may."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        if not _try_lock(descriptor, fcntl.LOCK_EX):
            # Who is alive shares the lock: where that cannot be, another reader has found it dead.
            return not _try_lock(descriptor, fcntl.LOCK_SH)
        if _is_still_at(path, descriptor):
            with contextlib.suppress(OSError):
                path.unlink()
        return True
    finally:
        os.close(descriptor)
