"""Large messages to another host in pieces, each a message of its own.

zmq encrypts and decrypts a part as a whole, in the one thread that serves all connections: a part
of 400 MB would hold up everything else meanwhile, a Stop as well, and be there three times.

    mark, the sizes of the parts        a first message
    mark, a piece                       as many as it takes, in order
"""

import json
from collections.abc import Iterator, Sequence

from jupyter_mgpu.shared_memory import map_anonymous
from jupyter_mgpu.wire import Frame

PIECE_BYTES = 2**19
MARK = b"+"
"""Shorter than the first part of any other message."""


def is_large(parts: Sequence[Frame]) -> bool:
    """Tell whether a message should travel in pieces."""
    return any(len(part) > PIECE_BYTES for part in parts)


def cut(parts: Sequence[Frame]) -> Iterator[tuple[Frame, Frame]]:
    """Return the messages that stand for a large one."""
    yield MARK, json.dumps([len(part) for part in parts]).encode()
    for part in parts:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            yield MARK, view[start : start + PIECE_BYTES]


class Pieces:
    """Puts the large messages of one connection together again."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._place = self._done = 0

    def take(self, message: Sequence[Frame]) -> list[Frame] | None:
        """Take what came.

        Returns:
            A whole message; None while there is none.
        """
        if len(message) != 2 or message[0] != MARK:
            return list(message)
        if not self._parts:
            # A bytearray would be cleared as a whole, now.
            self._parts = [_memory(size) for size in json.loads(bytes(message[1]))]
        else:
            end = self._done + len(message[1])
            self._parts[self._place][self._done : end] = message[1]
            self._done = end
        while self._place < len(self._parts) and self._done == len(self._parts[self._place]):
            self._place, self._done = self._place + 1, 0
        if self._place < len(self._parts):
            return None
        whole, self._parts, self._place = list[Frame](self._parts), [], 0
        return whole


def _memory(size: int) -> memoryview:
    return map_anonymous(size) if size > PIECE_BYTES else memoryview(bytearray(size))
