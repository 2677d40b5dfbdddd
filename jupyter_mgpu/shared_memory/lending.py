"""Lends the blocks of a message to its receiver, until that has mapped them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.shared_memory.block import ANSWERS, open_block
from jupyter_mgpu.shared_memory.mapping import block_of, span_of

Header = dict[str, Any]
Frame = bytes | memoryview

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

    def lend(
        self, peer: str, header: Header, frames: Sequence[Frame]
    ) -> tuple[Header, Sequence[Frame]]:
        """Return the message that is sent in place of one that has views of blocks in it."""
        lent = [(place, block_of(frame)) for place, frame in enumerate(frames)]
        lent = [(place, block) for place, block in lent if block is not None]
        if not lent:
            return header, frames
        number = next(self._numbers)
        self._loans[number] = Loan(peer, header, frames)
        blocks = list(dict.fromkeys(block for _, block in lent))
        index = {block: place for place, block in enumerate(blocks)}
        description = {
            "id": number,
            "blocks": [block.describe() for block in blocks],
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
        return loan if header["op"] == "refused" else None

    def forget(self, peer: str) -> None:
        """Take back what was lent to a receiver that has died."""
        for number, loan in list(self._loans.items()):
            if loan.peer == peer:
                self._loans.pop(number, None)


def borrow(header: Header, frames: list[Frame]) -> list[Frame]:
    """Return a message's frames, those that were lent among them, and take note of no lender.

    Raises:
        OSError: If a block cannot be opened or mapped.
    """
    description = header.get(_FIELD)
    if description is None:
        return frames
    blocks = [open_block(block) for block in description["blocks"]]
    frames = list(frames)
    for place, block, start, size in description["frames"]:
        frames.insert(place, blocks[block][start : start + size])
    return frames


def answer(header: Header, error: OSError | None = None) -> Header | None:
    """Make the answer to a message that something was lent with; None for any other message."""
    description = header.pop(_FIELD, None)
    if description is None:
        return None
    if error is None:
        return {"op": ANSWERS[0], "id": description["id"]}
    # Too many open files, or no memory for a mapping, will pass; a file that is not there will not.
    is_lasting = isinstance(error, FileNotFoundError | PermissionError)
    return {"op": ANSWERS[1], "id": description["id"], "is_lasting": is_lasting, "why": str(error)}
