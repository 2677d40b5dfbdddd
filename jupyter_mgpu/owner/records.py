"""The pools of this user, as files: who reads them can find, ask and stop a pool."""

import json
import os
import shutil
import socket as network
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_mgpu.on_engine import guard

if TYPE_CHECKING:  # a server and the command line read records, and start no engines
    from jupyter_mgpu.owner.engine_record import EngineRecord
    from jupyter_mgpu.owner.plans import PoolPlan

MOST_BYTES = 2**20
"""No record is larger than this."""


def folder() -> Path:
    """Return the folder of pool records in Jupyter's runtime folder; only its user may read it."""
    from jupyter_core.paths import jupyter_runtime_dir

    path = Path(jupyter_runtime_dir()) / "jupyter_mgpu"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def describe(plan: "PoolPlan", socket: Path, engines: "Iterable[EngineRecord]") -> dict[str, Any]:
    """Return a pool's record, with the engines that have a process on this machine now."""
    pid, started = guard.owner_stamp().split(":")
    return {
        "name": plan.name,
        "pid": int(pid),
        "start_time": started,
        "host": network.gethostname(),
        "socket": str(socket),
        "kernel_id": plan.kernel_id,
        "notebook": plan.notebook,
        "started": plan.started,
        "is_kept": plan.is_kept,
        "attached_pid": plan.attached_pid,
        "engines": [
            engine.record()
            for engine in engines
            if engine.process is not None and not engine.is_far
        ],
    }


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record such that a reader sees the old or the new one, never half of it."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(record, file)
    temporary.replace(path)


def read_all() -> list[dict[str, Any]]:
    """Return the records of pools of this host that live, or of which engines are left.

    Those of other users are not read, and those of pools of which nothing is left are removed,
    with their folders: a keeper that was killed has nobody else for that who runs on this host.

    Returns:
        One dict per pool: id, name, pid, start_time, socket, kernel_id, notebook, started,
        engines, is_orphaned (its kernel has died).
    """
    records = []
    for path in sorted(folder().glob("*.json")):
        record = _read(path)
        if record is None or record.get("host", network.gethostname()) != network.gethostname():
            continue  # hosts may share a home; another one's processes cannot be seen from here
        try:
            is_orphaned = not is_running(record)
            if is_orphaned and not any(map(is_running, record.get("engines", ()))):
                _remove(path, Path(record["socket"]).parent)
                continue
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, OSError):
            continue  # not one of ours
        records.append({**record, "id": path.stem, "is_orphaned": is_orphaned})
    return records


def _remove(path: Path, pool_folder: Path) -> None:
    path.unlink(missing_ok=True)
    if pool_folder.name == path.stem:  # else no pool has written this record
        shutil.rmtree(pool_folder, ignore_errors=True)


def _read(path: Path) -> dict[str, Any] | None:
    """Read a record of this user; None for what is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
            return None
        record = json.loads(os.read(descriptor, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    return record if isinstance(record, dict) else None


def is_running(process: dict[str, Any]) -> bool:
    """Tell whether the process with this `pid` and `start_time` has not ended; a zombie has."""
    try:
        state, *fields = guard.read_stat(int(process["pid"]))
    except ProcessLookupError:
        return False
    return state != "Z" and fields[18] == process["start_time"]
