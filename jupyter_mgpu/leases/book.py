"""The leases of this host: read, claimed, and kept from being claimed twice."""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from jupyter_mgpu.errors import LeaseError
from jupyter_mgpu.leases import locks
from jupyter_mgpu.leases.folder import default_folder, make_folder
from jupyter_mgpu.leases.records import Claim, Lease, read_lease, user_name

CHOOSING_TIMEOUT_S = 30.0
_PROBE_PAUSE_S = 0.003
_FILE_MODE = 0o644
_LOCK_NAME = "choosing.lock"
_SUFFIX = ".lease"
_DRAFT_SUFFIX = ".draft"
_DRAFT_LIFE_S = 60.0


class LeaseBook:
    """The leases of this host.

    Args:
        folder: Where records lie; the host's shared folder by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if not locks.are_available():
            raise LeaseError("GPUs cannot be leased on this platform. Use a CPU pool, or Linux.")
        self.folder = make_folder(folder or default_folder())

    def live(self) -> list[Lease]:
        """List the leases whose engine or pool still lives; remove records of dead ones."""
        suspects = [path for path in self._records() if not locks.remove_if_dead(path)]
        if not suspects:
            return []
        # A lock of another reader that ended between two looks at it is like that of a live lease.
        time.sleep(_PROBE_PAUSE_S)
        leases = (read_lease(path) for path in suspects if not locks.remove_if_dead(path))
        return sorted((lease for lease in leases if lease), key=lambda lease: lease.started)

    @contextlib.contextmanager
    def choosing(self, timeout: float = CHOOSING_TIMEOUT_S) -> Iterator[None]:
        """Keep every other pool of this host from choosing meanwhile.

        Raises:
            LeaseError: If others choose for longer than the time-out.
        """
        descriptor = locks.lock_exclusively(self.folder / _LOCK_NAME, timeout)
        try:
            yield
        finally:
            locks.release(descriptor)

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

        Raises:
            LeaseError: If a record cannot be written.
        """
        claim = Claim()
        try:
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
                claim.add(*self._write(lease))
        except BaseException as error:
            claim.drop()
            if not isinstance(error, OSError):
                raise
            raise LeaseError(
                f"A GPU could not be leased in {self.folder}: {error.strerror}. "
                "Free some space there, or name another folder in MGPU_LEASE_DIR."
            ) from error
        return claim

    def _records(self) -> list[Path]:
        with contextlib.suppress(OSError):
            self._sweep_drafts()
            return sorted(self.folder.glob(f"*{_SUFFIX}"))
        return []

    def _sweep_drafts(self) -> None:
        # Left by a process that was killed while it wrote one; a young one may be at work.
        for draft in self.folder.glob(f"*{_DRAFT_SUFFIX}"):
            with contextlib.suppress(OSError):
                age_s = datetime.now(UTC).timestamp() - draft.stat().st_mtime
                if age_s > _DRAFT_LIFE_S:
                    locks.remove_if_dead(draft)

    def _write(self, lease: Lease) -> tuple[Lease, int]:
        token = uuid.uuid4().hex[:12]
        safe_uuid = lease.gpu_uuid.replace("/", "_")
        path = self.folder / f"{safe_uuid}.{lease.rank}.{token}{_SUFFIX}"
        draft = path.with_suffix(_DRAFT_SUFFIX)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)
        try:
            os.fchmod(descriptor, _FILE_MODE)
            # Locked before it gets its name: a reader must never see it unlocked.
            locks.share(descriptor)
            record = asdict(lease)
            del record["path"]
            os.write(descriptor, json.dumps(record).encode())
            draft.rename(path)
        except BaseException:
            os.close(descriptor)
            draft.unlink(missing_ok=True)
            raise
        return replace(lease, path=path), descriptor
