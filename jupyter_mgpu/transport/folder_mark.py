"""A word in a file, by which another host knows the same folder; nothing of it stays."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from jupyter_mgpu import host
from jupyter_mgpu.on_engine import guard

_NAME = ".mgpu-probe-"
_LIFE_S = 300.0
"""So old a mark is a dead process's also where its processes cannot be seen from here."""


@contextlib.contextmanager
def marked(folder: Path, nonce: str) -> Iterator[Path]:
    """Put a word into a file of a folder; marks of killed processes are removed meanwhile."""
    _sweep(folder)
    stamp = guard.owner_stamp().replace(":", ".")  # no name may have a colon on Windows' shares
    file = folder / f"{_NAME}{_place()}-{stamp}-{nonce}"
    try:
        file.write_text(nonce)
    except OSError:  # not to be written: then modules must be there by other means
        yield file
        return
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def _place() -> str:
    """Name where pids mean what they do here: this run of the machine, container and user."""
    container = Path("/proc/self/ns/pid").readlink()
    text = f"{host.boot_id()} {container} {os.getuid()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sweep(folder: Path) -> None:
    now_s = datetime.now(UTC).timestamp()
    for mark in folder.glob(f"{_NAME}*"):
        place, _, rest = mark.name.removeprefix(_NAME).partition("-")
        with contextlib.suppress(OSError):
            is_here = place == _place()
            is_old = now_s - mark.stat().st_mtime > _LIFE_S
            if _is_dead(rest.partition("-")[0]) if is_here else is_old:
                mark.unlink()


def _is_dead(stamp: str) -> bool:
    try:
        os.close(guard.open_owner(stamp.replace(".", ":")))
    except ProcessLookupError:
        return True
    return False
