"""Lends the blocks of a message to its receiver, until that has mapped them."""

import errno
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.shared_memory.block import Description, open_block
from jupyter_mgpu.shared_memory.lent_memory import copy_memory, is_memory
from jupyter_mgpu.shared_memory.mapping import block_of, span_of

Header = dict[str, Any]
Frame = bytes | memoryview
Borrowed = tuple[list[Frame] | None, Header | None]

OPENED, REFUSED = ANSWERS = ("opened", "refused")
"""What the receiver of a message says of the blocks in it."""

_FIELD = "shared"  # of the header: what was lent with the message


@dataclass(frozen=True, slots=True)
class Loan:
    """A message that was sent to a peer, as it was before its blocks were taken out."""

    peer: str
    header: Header
    frames: Sequence[Frame]


class Lender:
    """Keeps what was lent until the receiver answers or dies. Any thread may call it."""

    def __init__(self) -> None:
        self._loans: dict[int, Loan] = {}
        self._numbers = itertools.count(1)

    @property
    def has_lent(self) -> bool:
        """Whether there are messages that their receivers have not opened so far."""
        return bool(self._loans)

    def lend(
        self,
        peer: str,
        header: Header,
        frames: Sequence[Frame],
        describe: Callable[[Any], Any] = lambda block: block.describe(),
    ) -> tuple[Header, Sequence[Frame]]:
        """Return the message that is sent in place of one that has views of blocks in it.

        Args:
            peer: Who gets it.
            header: The message's.
            frames: The message's.
            describe: Says how the peer finds a block; None where it cannot.
        """
        found = {block: None for frame in frames if (block := block_of(frame)) is not None}
        described = {block: text for block in found if (text := describe(block)) is not None}
        if not described:
            return header, frames
        lent = [(place, block_of(frame)) for place, frame in enumerate(frames)]
        lent = [(place, block) for place, block in lent if block in described]
        number = next(self._numbers)
        self._loans[number] = Loan(peer, header, frames)
        index = {block: place for place, block in enumerate(described)}
        description = {
            "id": number,
            "blocks": list(described.values()),
            "frames": [[place, index[block], *span_of(frames[place])] for place, block in lent],
        }
        taken = {place for place, _ in lent}
        left = [frame for place, frame in enumerate(frames) if place not in taken]
        return {**header, _FIELD: description}, left

    def answered(self, header: Header) -> Loan | None:
        """Take the receiver's answer.

        Returns:
            The message, where it must be sent again with its frames in it.
        """
        loan = self._loans.pop(header["id"], None)
        return loan if header["op"] == REFUSED else None

    def forget(self, peer: str) -> None:
        """Take back what was lent to a receiver that has died."""
        for number, loan in list(self._loans.items()):
            if loan.peer == peer:
                self._loans.pop(number, None)

    def close(self) -> None:
        """Take everything back."""
        self._loans.clear()


def borrow(header: Header, frames: list[Frame], *, holds: bool = False) -> Borrowed:
    """Map or copy what was lent with a message.

    Args:
        header: The message's; what describes the loan is taken out.
        frames: Its other frames.
        holds: Let the blocks be lent on, also when the sender has ended.

    Returns:
        The message's frames, None where a block cannot be had: the message comes again then, with
        all its frames; and the answer to the sender, None for a message without blocks.
    """
    description = header.pop(_FIELD, None)
    if description is None:
        return frames, None
    number = description["id"]
    try:
        blocks = [_open(block, holds=holds) for block in description["blocks"]]
    except Exception as error:  # noqa: BLE001 - whatever it is, the message comes again in full
        # Too many open files, or no memory for a mapping, will pass; no such file will not.
        is_lasting = isinstance(error, FileNotFoundError | PermissionError)
        return None, {"op": REFUSED, "id": number, "is_lasting": is_lasting, "why": str(error)}
    frames = list(frames)
    for place, block, start, size in description["frames"]:
        frames.insert(place, blocks[block][start : start + size])
    return frames, {"op": OPENED, "id": number}


def is_copied(header: Header) -> bool:
    """Tell whether borrowing what came with a message takes a while, as it is copied then."""
    return any(map(is_memory, header.get(_FIELD, {}).get("blocks", ())))


def _open(block: Description, *, holds: bool) -> memoryview:
    if not is_memory(block):
        return open_block(block, holds=holds)
    if holds:
        raise PermissionError(errno.EACCES, "a copy cannot be lent on")
    return copy_memory(block)
