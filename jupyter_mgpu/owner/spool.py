"""Large results of kept pools, each in a file of its own: they wait there for a kernel.

A file has its name once it is whole. All of them together take so much disk and no more: the
oldest go first.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.wire import Frame

SPOOL_BYTES = 4 * 2**30
"""For all results that wait here, of all pools of this user."""
LEFT_BYTES = 2**30
"""So much of the disk stays free."""
SUFFIX = ".result"
_PART = ".part"
_CLOSE_S = 60.0
_LOOK_S = 0.02


class Spool:
    """Writes the large results of one pool, each in a thread of its own.

    Args:
        folder: Where; only its user may read it.
        stem: The beginning of the files' names, which no other pool has.
    """

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self._stem = stem
        self._writers: list[threading.Thread] = []

    def keep(self, task_id: str, frames: Sequence[Frame]) -> str | None:
        """Begin to write a result.

        Returns:
            The name of its file; None if there is no room for it.
        """
        size = sum(map(len, frames))
        if size > SPOOL_BYTES:
            return None
        make_room(self._folder, size)
        if shutil.disk_usage(self._folder).free < size + LEFT_BYTES:
            return None
        name = f"{self._stem}-{task_id}{SUFFIX}"
        path = self._folder / name
        path.with_suffix(_PART).touch(0o600)  # now: who looks for it is to wait
        writer = threading.Thread(target=_write, args=(path, frames), name="mgpu-spool")
        writer.daemon = True
        writer.start()
        self._writers = [writer, *(other for other in self._writers if other.is_alive())]
        return name

    def close(self) -> None:
        """Wait until all is written."""
        for writer in self._writers:
            writer.join(_CLOSE_S)


def _write(path: Path, frames: Sequence[Frame]) -> None:
    part = path.with_suffix(_PART)
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for frame in frames:
                left = memoryview(frame)
                while left:
                    left = left[file.write(left) :]
        part.replace(path)
    except OSError:  # the disk is full: who asks for it is told that it is not there
        part.unlink(missing_ok=True)


def wait_for(path: Path) -> None:
    """Wait for the end of the writing of a result.

    Raises:
        MgpuError: If it is not there any more.
    """
    while not path.exists():
        if not path.with_suffix(_PART).exists() and not path.exists():
            raise MgpuError(
                f"The result is not on disk any more: all results that wait there may take "
                f"{SPOOL_BYTES / 2**30:.0f} GiB, and the oldest go first."
            )
        time.sleep(_LOOK_S)  # it is written by another process


def make_room(folder: Path, size: int) -> None:
    """Remove the oldest results until another one of that size may be added."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(taken for _, taken, _ in found)
    for _, taken, path in sorted(found):
        if total + size <= SPOOL_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= taken
