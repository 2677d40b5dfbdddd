"""Brings blocks to other hosts, each once, where the guard of an engine holds it for all of them.

The guards do it, not the engines: they answer while an engine is busy in C, and end when it does.
"""

import asyncio
import contextlib
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.shared_memory import Block, holder
from jupyter_mgpu.wire import Frame, Header, encode

PIECE_BYTES = 512 * 1024
MOST_PIECES = 16
"""So many may be under way to a guard: the word that ends its engine waits behind them."""


@dataclass(slots=True, eq=False)
class HostCopy:
    """A block on another host, or on its way there.

    Attributes:
        memory: What is in it; None when it is not needed here any more.
        description: How engines of that host find it, once it is there.
        took_s: How long it took to bring it there.
    """

    number: int
    host: str
    block: "weakref.ref[Block]"
    memory: memoryview | None
    begun_s: float
    holder: str = ""
    start: int = 0  # of the next piece
    description: Header | None = None
    took_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether it has arrived, or never will."""
        return self.memory is None


@dataclass(slots=True, eq=False)
class _Holder:
    engine: EngineRecord
    name: str
    queue: deque[HostCopy] = field(default_factory=deque)
    under_way: dict[tuple[int, int], HostCopy] = field(default_factory=dict)

    def is_on(self, host: str) -> bool:
        return self.engine.is_alive and self.engine.host == host and self.engine.name == self.name

    def num_waiting(self) -> int:
        """Count the bytes that it still has to get, roughly."""
        left = sum(len(copy.memory) - copy.start for copy in self.queue if copy.memory is not None)
        return left + len(self.under_way) * PIECE_BYTES


class HostCopies:
    """The blocks of one pool on other hosts. Its methods run in the owner's event loop.

    Args:
        send: Sends the guard of an engine, by the engine's name, the parts of a message.
        on_over: Called when copies have arrived, or when it turns out that they will not.
        on_trouble: Called with the engine of a holder that cannot hold a block, and why.
        loop: The owner's event loop.
    """

    def __init__(
        self,
        send: Callable[[str, list[Frame]], None],
        on_over: Callable[[], None],
        on_trouble: Callable[[EngineRecord, str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._send = send
        self._on_over = on_over
        self._on_trouble = on_trouble
        self._loop = loop
        self._holders: dict[str, _Holder] = {}
        self._copies: dict[int, HostCopy] = {}
        self._by_block: weakref.WeakKeyDictionary[Block, dict[str, HostCopy]]
        self._by_block = weakref.WeakKeyDictionary()
        self._numbers = itertools.count(1)

    def bring(self, host: str, block: Block, memory: memoryview) -> HostCopy:
        """Return the copy of a block on a host; it is sent if there is none.

        Args:
            host: The host's name.
            block: A block of this process.
            memory: All that is in it.

        Returns:
            A copy that is over at once if nobody on that host can hold it.
        """
        copies = self._by_block.setdefault(block, {})
        copy = copies.get(host)
        if copy is None:
            number = next(self._numbers)
            copy = HostCopy(number, host, weakref.ref(block), memory, self._loop.time())
            copies[host] = self._copies[number] = copy
            weakref.finalize(block, self._on_block_gone, number).atexit = False
            self._start(copy)
        return copy

    def _start(self, copy: HostCopy) -> None:
        """Send a copy to who has least to do on its host."""
        found = [one for one in self._holders.values() if one.is_on(copy.host)]
        if not found:
            self.forget(copy)
            return
        chosen = min(found, key=lambda one: (one.num_waiting(), one.engine.rank))
        copy.holder, copy.start = chosen.name, 0
        chosen.queue.append(copy)
        self._send_next(chosen)

    def _send_next(self, to: _Holder) -> None:
        while to.queue and len(to.under_way) < MOST_PIECES:
            copy = to.queue[0]
            if copy.memory is not None and copy.start < len(copy.memory):
                to.under_way[copy.number, copy.start] = copy
                self._send_piece(to, copy, copy.start)
                copy.start += PIECE_BYTES
            else:
                to.queue.popleft()

    def _send_piece(self, to: _Holder, copy: HostCopy, start: int) -> None:
        if copy.memory is not None:
            place = {"id": copy.number, "start": start, "size": len(copy.memory)}
            piece = copy.memory[start : start + PIECE_BYTES]
            parts = encode({"op": holder.PIECE, **place}, [piece])
            to.engine.sent_bytes += sum(map(len, parts))
            self._send(to.name, parts)

    def heard(self, name: str, header: Header) -> None:
        """Take what the guard of an engine says."""
        one = self._holders.get(name)
        if one is None:
            return
        if header["op"] == "hello":  # its connection broke, and what was under way may be lost
            for (number, start), lost in list(one.under_way.items()):
                if lost.is_over:  # and nobody would answer
                    del one.under_way[number, start]
                self._send_piece(one, lost, start)
            self._send_next(one)
        elif header["op"] == holder.HELD:
            copy = one.under_way.pop((header["id"], header["start"]), None)
            if copy is not None and not copy.is_over:
                self._take_answer(one, copy, header)
            self._send_next(one)

    def _take_answer(self, one: _Holder, copy: HostCopy, answer: Header) -> None:
        copy.description = answer.get("block")
        if copy.description is not None or "why" in answer:
            copy.memory = None
            copy.took_s = self._loop.time() - copy.begun_s
            if "why" in answer:
                self._on_trouble(one.engine, answer["why"])
            self._on_over()

    def forget(self, copy: HostCopy) -> None:
        """Use a copy no more, and have it dropped."""
        copy.memory = copy.description = None
        block = copy.block()
        if block is not None:
            copies = self._by_block.get(block, {})
            if copies.get(copy.host) is copy:
                del copies[copy.host]
        self._drop(copy.number)

    def keep(self, needed: Container[HostCopy]) -> None:
        """Send on only what somebody waits for."""
        for copy in list(self._copies.values()):
            if not copy.is_over and copy not in needed:
                self.forget(copy)

    def find(self, host: str, block: Block) -> HostCopy | None:
        """Return the copy of a block on a host, if there is one."""
        return self._by_block.get(block, {}).get(host)

    def _on_block_gone(self, number: int) -> None:
        """Have a copy dropped whose block nobody uses any more; any thread may come here."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it all holders
            self._loop.call_soon_threadsafe(self._drop, number)

    def _drop(self, number: int) -> None:
        copy = self._copies.pop(number, None)
        if copy is not None and copy.holder in self._holders:
            self._send(copy.holder, encode({"op": holder.DROP, "id": number}))

    def add_holder(self, engine: EngineRecord) -> None:
        """Let the guard of an engine that has said hello hold blocks."""
        self._holders[engine.name] = _Holder(engine, engine.name)

    def remove_holder(self, engine: EngineRecord) -> None:
        """Bring elsewhere what was on its way to an engine that has ended."""
        if self._holders.pop(engine.name, None) is None:
            return
        for copy in list(self._copies.values()):
            if copy.holder == engine.name:
                if copy.is_over:
                    self.forget(copy)
                else:
                    self._start(copy)
        self._on_over()

    def close(self) -> None:
        """Forget everything; the holders end with the pool."""
        for copy in self._copies.values():
            copy.memory = None
        self._holders.clear()
        self._copies.clear()
