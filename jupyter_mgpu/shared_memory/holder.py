"""Holds blocks of an owner on another host, for all readers of this one; they come in pieces."""

import os
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu import host
from jupyter_mgpu.shared_memory.block import Block, may_hold_more, new_block
from jupyter_mgpu.shared_memory.store import fits

Header = dict[str, Any]
Frame = bytes | memoryview

PIECE, DROP, HELD = "piece", "drop", "held"
"""What the owner says, and what it is answered."""


class Holder:
    """The blocks that this process keeps for its host."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Arriving | str] = {}  # a text is why one cannot be held

    def obey(self, header: Header, frames: list[Frame]) -> Header | None:
        """Take a piece of a block, or drop one; harmless for other messages.

        A piece may come twice: what was under way when a connection broke is sent again.

        Returns:
            What to answer: with the block's description once it is complete, with the reason
            where it cannot be held.
        """
        if header["op"] == DROP:
            self._blocks.pop(header["id"], None)
        if header["op"] != PIECE:
            return None
        number, start = header["id"], header["start"]
        try:
            arriving = self._blocks.get(number) or _begin(header["size"])
            if not isinstance(arriving, str):
                arriving.add(start, frames[0])
        except OSError as error:
            arriving = str(error)
        self._blocks[number] = arriving
        answer: Header = {"op": HELD, "id": number, "start": start}
        if isinstance(arriving, str):
            return {**answer, "why": arriving}
        return {**answer, "block": arriving.description}


@dataclass(slots=True)
class _Arriving:
    """A block that is not complete yet, or is."""

    block: Block
    left: int
    starts: set[int] = field(default_factory=set)
    description: Header | None = None

    def add(self, start: int, piece: Frame) -> None:
        if start in self.starts:
            return
        self.block.write(start, piece)
        self.starts.add(start)
        self.left -= len(piece)
        if not self.left:
            self.description = {**self.block.finish(), "boot": host.boot_id()}


def _begin(size: int) -> _Arriving | str:
    if not hasattr(os, "memfd_create"):
        return "this system has no memfds"
    if not may_hold_more():
        return "too many open files"
    return _Arriving(new_block(), size) if fits(size) else "too little free memory"
