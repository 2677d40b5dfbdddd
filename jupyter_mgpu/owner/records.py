"""The pools of this user, as files: who reads them can find, ask and stop a pool."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jupyter_mgpu.on_engine import guard
from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.owner.plans import PoolPlan


def folder() -> Path:
    """Return the folder of pool records in Jupyter's runtime folder; only its user may read it."""
    from jupyter_core.paths import jupyter_runtime_dir

    path = Path(jupyter_runtime_dir()) / "jupyter_mgpu"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def describe(plan: PoolPlan, socket: Path, engines: Iterable[EngineRecord]) -> dict[str, Any]:
    """Return a pool's record, with the engines that have a process now."""
    pid, started = guard.owner_stamp().split(":")
    return {
        "name": plan.name,
        "pid": int(pid),
        "start_time": started,
        "socket": str(socket),
        "kernel_id": plan.kernel_id,
        "notebook": plan.notebook,
        "started": plan.started,
        "engines": [engine.record() for engine in engines if engine.process is not None],
    }


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record such that a reader sees the old or the new one, never half of it."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(record, file)
    temporary.replace(path)


def read_all() -> list[dict[str, Any]]:
    """Return the records of pools that live; those of dead ones are removed.

    Returns:
        One dict per pool: name, pid, start_time, socket, kernel_id, notebook, engines.
    """
    records = []
    for path in sorted(folder().glob("*.json")):
        try:
            if path.stat().st_uid != os.getuid():
                continue
            record = json.loads(path.read_text())
            alive = guard.start_time(record["pid"]) == record["start_time"]
        except ProcessLookupError:
            alive, record = False, {}
        except (OSError, ValueError, KeyError):
            continue
        if alive:
            records.append(record)
        else:
            path.unlink(missing_ok=True)
    return records
