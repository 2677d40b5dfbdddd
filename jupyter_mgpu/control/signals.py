"""Reaches the engines of a pool whose owner is silent: by signal, checked by start time."""

import contextlib
import os
import shutil
import signal
import stat
from collections.abc import Iterator

from jupyter_mgpu.control.found import FoundEngine, FoundPool
from jupyter_mgpu.on_engine import guard
from jupyter_mgpu.owner import records


def interrupt_engines(pool: FoundPool) -> list[int]:
    """Send SIGINT to each engine: it ends what runs there; return their ranks."""
    ranks = []
    for engine, descriptor in _living(pool):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGINT)
            ranks.append(engine.rank)
    return ranks


def end_engines(pool: FoundPool) -> list[int]:
    """End each engine with its children at once, also a stopped one; return their ranks."""
    ranks = []
    for engine, descriptor in _living(pool):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(engine.pid) == engine.pid:  # an engine leads a group of its own
                os.killpg(engine.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            ranks.append(engine.rank)
    return ranks


def living_ranks(pool: FoundPool) -> list[int]:
    """Return the ranks whose engines have not ended; a zombie has."""
    alive = []
    for engine in pool.engines:
        process = {"pid": engine.pid, "start_time": engine.start_time}
        if records.is_running(process):
            alive.append(engine.rank)
    return alive


def remove_remains(pool: FoundPool) -> None:
    """Remove the record and the private folder of a pool whose kernel has died."""
    with contextlib.suppress(OSError):
        found = pool.folder.lstat()
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if is_ours and pool.folder.name == pool.id:  # never what a damaged record names
            shutil.rmtree(pool.folder, ignore_errors=True)
    pool.record_path.unlink(missing_ok=True)


def _living(pool: FoundPool) -> Iterator[tuple[FoundEngine, int]]:
    """Yield the engines that live, each with a descriptor that is of this process for certain."""
    for engine in pool.engines:
        try:
            descriptor = os.pidfd_open(engine.pid)
        except OSError:
            continue
        try:
            # Opened first: if the start time is right now, the descriptor is the engine's.
            with contextlib.suppress(ProcessLookupError):
                if guard.start_time(engine.pid) == engine.start_time:
                    yield engine, descriptor
        finally:
            os.close(descriptor)
