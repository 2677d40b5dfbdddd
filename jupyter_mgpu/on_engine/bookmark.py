"""Notes which item of a loop runs, where it can be read after the process was killed."""

import mmap
import os
import struct
from pathlib import Path

_PLACE = struct.Struct("<qq")  # the chunk's number, the item's position in it


class Bookmark:
    """A place in memory that is a file's: what is written survives any death of the process.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _PLACE.size)
            self._map = mmap.mmap(descriptor, _PLACE.size)
        finally:
            os.close(descriptor)

    def set(self, chunk: int, position: int) -> None:
        """Note that an item starts."""
        _PLACE.pack_into(self._map, 0, chunk, position)


def path_beside(log: Path) -> Path:
    """Return where the bookmark of the engine with that log file is."""
    return log.with_suffix(".item")


def read(path: Path, chunk: int) -> int | None:
    """Return the position in a chunk that was noted last; None where that chunk had no item."""
    try:
        number, position = _PLACE.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return position if number == chunk else None
