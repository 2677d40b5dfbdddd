"""Sends messages to engines of other hosts, with large data once per host.

a message with blocks   waits until the holder on its host has them, then lends those copies
the engine's next ones  wait behind it, but those of its control channel pass it
no holder, no memory,   the frames go by the socket, to each engine for itself
or it cannot be opened
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.owner.host_copies import HostCopies, HostCopy
from jupyter_mgpu.owner.recent_frames import RecentFrames
from jupyter_mgpu.shared_memory import Block, Lender, block_of, memory_of
from jupyter_mgpu.wire import Frame, Header

MOST_REFUSALS = 2
"""One block that cannot be opened may be one whose holder has just died, the next one is not."""

Send = Callable[[str, EngineRecord, Header, Sequence[Frame], int], None]
"""Sends on a channel to an engine: header, frames, and how many bytes were lent beside them."""


@dataclass(slots=True, eq=False)
class _Message:
    channel: str
    engine: EngineRecord
    peer: str
    header: Header
    frames: Sequence[Frame]
    copies: dict[Block, HostCopy]

    @property
    def is_ready(self) -> bool:
        return all(copy.is_over for copy in self.copies.values())


class HostLending:
    """What is sent to the engines of other hosts. Its methods run in the owner's event loop.

    Args:
        send: Sends to an engine.
        tell: Sends to the guard of an engine, by the engine's name.
        say: Tells the user a sentence about an engine.
        loop: The owner's event loop.
    """

    def __init__(
        self,
        send: Send,
        tell: Callable[[str, list[Frame]], None],
        say: Callable[[EngineRecord, str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._send = send
        self._say = say
        self._lender = Lender()
        self._copies = HostCopies(tell, self._send_waiting, self._on_trouble, loop)
        self.heard = self._copies.heard
        self._recent = RecentFrames(loop)
        self._waiting: list[_Message] = []
        self._refusals: Counter[str] = Counter()
        self._told: set[str] = set()

    def send(
        self, channel: str, engine: EngineRecord, header: Header, frames: Sequence[Frame]
    ) -> None:
        """Send a message, at once or when its blocks are on the engine's host."""
        if header["op"] == "interrupt":
            self._hurry(engine, header["task"])
        peer = f"{channel}:{engine.name}"
        copies = self._bring(engine.host, frames)
        message = _Message(channel, engine, peer, header, frames, copies)
        is_behind = channel == "work" and any(other.peer == peer for other in self._waiting)
        if is_behind or not message.is_ready:
            self._waiting.append(message)
        else:
            self._deliver(message)

    def _bring(self, host: str | None, frames: Sequence[Frame]) -> dict[Block, HostCopy]:
        if not host or self._refusals[host] >= MOST_REFUSALS:
            return {}
        blocks = {block: frame for frame in frames if (block := block_of(frame)) is not None}
        return {
            block: self._copies.bring(host, block, memory_of(frame))
            for block, frame in blocks.items()
        }

    def _send_waiting(self) -> None:
        """Send what can be sent by now, each engine's work in its order."""
        waiting, self._waiting = self._waiting, []
        held_up = set()
        for message in waiting:
            if message.peer in held_up or not message.is_ready:
                self._waiting.append(message)
                if message.channel == "work":
                    held_up.add(message.peer)
            else:
                self._deliver(message)

    def _hurry(self, engine: EngineRecord, task: str) -> None:
        """Let an engine end a task that is stopped before its data has come."""
        for message in self._waiting:
            if message.engine is engine and message.header.get("task") == task:
                message.header = {**message.header, "is_stopped": True}
                message.frames, message.copies = (), {}
        self._send_only_needed()
        self._send_waiting()

    def _send_only_needed(self) -> None:
        waited_for = {copy for message in self._waiting for copy in message.copies.values()}
        self._copies.keep(waited_for)

    def _deliver(self, message: _Message) -> None:
        described = {block: copy.description for block, copy in message.copies.items()}
        self._keep(message)
        header, left = self._lender.lend(
            message.peer, message.header, message.frames, described.get
        )
        shared = sum(map(len, message.frames)) - sum(map(len, left))
        self._send(message.channel, message.engine, header, left, shared)

    def _keep(self, message: _Message) -> None:
        """Keep the frames of a message that others may have as well."""
        views = Counter(map(block_of, message.frames))
        for frame in message.frames:
            copy = message.copies.get(block_of(frame))
            # Those that share a block were made for this message only.
            if copy is not None and copy.description and views[block_of(frame)] == 1:
                self._recent.keep(frame, copy.took_s)

    def answered(self, engine: EngineRecord, header: Header) -> None:
        """Take an engine's answer about what was lent to it."""
        loan = self._lender.answered(header)
        host = engine.host or ""
        if loan is None:
            self._refusals.pop(host, None)
            return
        if header["is_lasting"]:
            blocks = {block for frame in loan.frames if (block := block_of(frame)) is not None}
            copies = [copy for block in blocks if (copy := self._copies.find(host, block))]
            for copy in copies:
                self._copies.forget(copy)
            self._refusals[host] += bool(copies)
            if self._refusals[host] == MOST_REFUSALS:
                self._on_trouble(engine, header["why"])
        channel = loan.peer.partition(":")[0]
        self._send(channel, engine, loan.header, loan.frames, 0)

    def _on_trouble(self, engine: EngineRecord, why: str) -> None:
        host = engine.host or ""
        if host not in self._told:
            self._told.add(host)
            sentence = (
                f"Large data cannot be held on {host} for all of its engines ({why}). It is sent "
                "to each of them by itself."
            )
            self._say(engine, sentence)

    def join(self, engine: EngineRecord) -> None:
        """Let an engine that has said hello hold data for its host."""
        self._copies.add_holder(engine)

    def forget(self, engine: EngineRecord) -> None:
        """Drop what was meant for an engine that has ended."""
        self._waiting = [other for other in self._waiting if other.engine is not engine]
        self._send_only_needed()
        for channel in ("work", "control"):
            self._lender.forget(f"{channel}:{engine.name}")
        self._copies.remove_holder(engine)

    def close(self) -> None:
        """Take everything back."""
        self._waiting.clear()
        self._recent.close()
        self._lender.close()
        self._copies.close()
