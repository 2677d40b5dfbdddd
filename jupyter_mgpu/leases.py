"""Who holds which GPU on this host: one locked record per (GPU, engine), across users.

    pool: claim -> record file, LOCK_SH          reader: LOCK_EX without waiting, on a read-only
    engine's watchdog: LOCK_SH as well                   descriptor: refused = the lease is alive
    pool: release_own_locks (or keep them)       both locks gone = dead: whoever may removes it

The kernel drops a lock when the last holder ends, however it ends, so no record outlives its
engine and no clean-up has to run.
"""

import contextlib
import fcntl
import getpass
import json
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from jupyter_mgpu.errors import LeaseError

FOLDER_VARIABLE = "MGPU_LEASE_DIR"
PATHS_VARIABLE = "MGPU_LEASES"
"""Names the records of an engine to its watchdog, separated by os.pathsep."""

CHOOSING_TIMEOUT_S = 30.0
_POLL_S = 0.02
_PROBE_PAUSE_S = 0.003
_FOLDER_MODE = 0o1777
_FILE_MODE = 0o644
_FOLDER_NAME = "jupyter_mgpu"
_LOCK_NAME = "choosing.lock"
_SUFFIX = ".lease"
_LARGEST_RECORD_BYTES = 64 * 1024


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
    """The records of one engine, held by this process until released or dropped."""

    def __init__(self, leases: Sequence[Lease], descriptors: Sequence[int]) -> None:
        self.leases = tuple(leases)
        self._descriptors = list(descriptors)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The record files, for the engine's watchdog to lock."""
        return tuple(lease.path for lease in self.leases if lease.path is not None)

    def release_own_locks(self) -> None:
        """Leave the records to the engine's watchdog. Can be called twice."""
        for descriptor in self._descriptors:
            # Unlocked by name, since a forked child may hold a copy of the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        self._descriptors.clear()

    def hold(self) -> None:
        """Lock the records again, so that they outlive an engine that is being replaced."""
        if self._descriptors:
            return
        for path in self.paths:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                self._descriptors.append(descriptor)

    def drop(self) -> None:
        """Give the GPUs back. Records of an engine that still lives stay until it ends."""
        self.release_own_locks()
        for path in self.paths:
            with contextlib.suppress(OSError):
                _remove_if_dead(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


class LeaseBook:
    """The leases of this host.

    Args:
        folder: Where records lie; the host's shared folder by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = _make_folder(folder or default_folder())

    def live(self) -> list[Lease]:
        """List the leases whose engine or pool still lives; remove records of dead ones."""
        suspects = [path for path in self._records() if not _remove_if_dead(path)]
        if not suspects:
            return []
        # Another reader probes by a short exclusive lock, which looks like a live lease.
        time.sleep(_PROBE_PAUSE_S)
        leases = (_read(path) for path in suspects if not _remove_if_dead(path))
        return sorted((lease for lease in leases if lease), key=lambda lease: lease.started)

    @contextlib.contextmanager
    def choosing(self, timeout: float = CHOOSING_TIMEOUT_S) -> Iterator[None]:
        """Keep every other pool of this host from choosing meanwhile.

        Raises:
            LeaseError: If others choose for longer than the time-out.
        """
        descriptor = _lock_exclusively(self.folder / _LOCK_NAME, timeout)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def claim(
        self,
        gpu_uuids: Sequence[str],
        *,
        rank: int,
        pool: str,
        notebook: str | None = None,
        kernel_id: str | None = None,
    ) -> Claim:
        """Write and lock one record per GPU of one engine.

        Several records of one GPU may exist: whether that is wanted is for the caller to decide.
        """
        leases: list[Lease] = []
        descriptors: list[int] = []
        for gpu_uuid in gpu_uuids:
            lease = Lease(
                gpu_uuid=gpu_uuid,
                user=user_name(),
                pid=os.getpid(),
                pool=pool,
                rank=rank,
                notebook=notebook,
                kernel_id=kernel_id,
                started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            )
            path, descriptor = self._write(lease)
            leases.append(replace(lease, path=path))
            descriptors.append(descriptor)
        return Claim(leases, descriptors)

    def _records(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return sorted(self.folder.glob(f"*{_SUFFIX}"))
        return []

    def _write(self, lease: Lease) -> tuple[Path, int]:
        token = uuid.uuid4().hex[:12]
        safe_uuid = lease.gpu_uuid.replace("/", "_")
        path = self.folder / f"{safe_uuid}.{lease.rank}.{token}{_SUFFIX}"
        draft = path.with_suffix(".draft")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)
        try:
            os.fchmod(descriptor, _FILE_MODE)
            # Locked before it gets its name: a reader must never see it unlocked.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            record = asdict(lease)
            del record["path"]
            os.write(descriptor, json.dumps(record).encode())
            draft.rename(path)
        except BaseException:
            os.close(descriptor)
            draft.unlink(missing_ok=True)
            raise
        return path, descriptor


def default_folder() -> Path:
    """Find the folder that all users of this host share."""
    override = os.environ.get(FOLDER_VARIABLE)
    if override:
        return Path(override)
    # Not tempfile's choice first: TMPDIR often differs between users.
    for parent in (Path("/run/lock"), Path("/tmp"), Path("/var/tmp")):
        if _is_shared(parent):
            return parent / _FOLDER_NAME
    return Path(tempfile.gettempdir()) / _FOLDER_NAME


def user_name() -> str:
    """Name the user of this process, also where no account database knows the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _is_shared(folder: Path) -> bool:
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    is_open = bool(mode & stat.S_IWOTH and mode & stat.S_ISVTX)
    return stat.S_ISDIR(mode) and is_open and os.access(folder, os.W_OK | os.X_OK)


def _make_folder(folder: Path) -> Path:
    if not folder.exists():
        # Made under another name, so that nobody meets it before its mode is right.
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=_existing(folder.parent)))
        draft.chmod(_FOLDER_MODE)
        try:
            draft.rename(folder)
        except OSError:  # somebody else was faster, and there is a record in it already
            draft.rmdir()
    if not stat.S_ISDIR(folder.lstat().st_mode) or not os.access(folder, os.W_OK | os.X_OK):
        raise LeaseError(
            f"GPU leases cannot be kept in {folder}: it is no folder that this user may write to. "
            f"Ask its owner to run `chmod 1777 {folder}`, or name another one in {FOLDER_VARIABLE}."
        )
    return folder


def _existing(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _lock_exclusively(path: Path, timeout: float) -> int:
    deadline_s = time.monotonic() + timeout
    while True:
        descriptor = _open_lock_file(path)
        if _try_lock(descriptor, fcntl.LOCK_EX) and _is_still_at(path, descriptor):
            return descriptor
        os.close(descriptor)
        if time.monotonic() > deadline_s:
            raise LeaseError(
                f"Another pool has been choosing GPUs for {timeout:g} s. "
                f"Try again; `fuser -v {path}` names the process."
            )
        time.sleep(_POLL_S)


def _open_lock_file(path: Path) -> int:
    while True:
        # Without O_CREAT first: fs.protected_regular forbids it on files of other users. An
        # exclusive lock needs no write access.
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with contextlib.suppress(FileExistsError):
            flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
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


def _remove_if_dead(path: Path) -> bool:
    """Tell whether a record is dead or gone; remove it if this user may."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        if not _try_lock(descriptor, fcntl.LOCK_EX):
            return False
        if _is_still_at(path, descriptor):
            with contextlib.suppress(OSError):
                path.unlink()
        return True
    finally:
        os.close(descriptor)


def _read(path: Path) -> Lease | None:
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(_LARGEST_RECORD_BYTES))
        return Lease(
            gpu_uuid=str(record["gpu_uuid"]),
            user=str(record["user"]),
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
