"""Messages between a kernel and a keeper, with the blocks in them, over one unix socket."""

import asyncio
import contextlib
import itertools
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from jupyter_mgpu.shared_memory import ANSWERS, Lender, borrow
from jupyter_mgpu.wire import Frame, Header, decode, encode

_CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: pid, user, group
_COUNT = struct.Struct("<I")
_CLOSE_S = 1.0
_SETTLE_S = 5.0
_LOOK_S = 0.005
_AGAIN = "again"  # of the header: the loan that was refused, and is sent in full now
_READ_BYTES = 1 << 16

TakeIn = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Protocol(asyncio.StreamReaderProtocol):
    """Hears the other end out after it has gone: a write that fails would drop what it has said."""

    def __init__(self, reader: asyncio.StreamReader, take_in: TakeIn | None = None) -> None:
        super().__init__(reader, take_in)
        self._reader = reader
        self._descriptor = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._descriptor = transport.get_extra_info("socket").fileno()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - hence this class
        with contextlib.suppress(OSError):
            while part := os.read(self._descriptor, _READ_BYTES):
                self._reader.feed_data(part)
        super().connection_lost(None)


async def open_streams(
    connected: socket.socket,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of one end of a connection."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, protocol = await loop.create_unix_connection(
        lambda: _Protocol(reader), sock=connected
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def serve_streams(take_in: TakeIn, path: Path) -> asyncio.Server:
    """Call a function with the streams of each connection to a socket of that path."""
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: _Protocol(asyncio.StreamReader(), take_in), path)


class Connection:
    """One end of the connection. All methods run in one event loop.

    Messages stay in order, also one whose blocks could not be opened and that comes again.

    Args:
        reader: The socket's, of `open_streams` or `serve_streams`.
        writer: Likewise.
        on_message: Takes each message.
        on_refused: Called with the frames of a message whose blocks the other side could not
            open, and why; they go through the socket then.
        holds: Whether blocks that come outlive who has sent them.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_message: Callable[[Header, list[Frame]], None],
        *,
        on_refused: Callable[[Sequence[Frame], Header], object],
        holds: bool,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_message = on_message
        self._on_refused = on_refused
        self._holds = holds
        self._lender = Lender()
        self._missing: int | None = None  # the loan that is to come again
        self._behind: deque[tuple[Header, list[Frame]]] = deque()  # what came since

    def peer_pid(self) -> int:
        """Return the process at the other end; 0 where it cannot be seen from here."""
        found = self._writer.get_extra_info("socket")
        pid: int = _CREDENTIALS.unpack(
            found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )[0]
        return pid

    async def run(self) -> None:
        """Take messages until the other end is closed, or this one."""
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ValueError):
                while True:
                    self._take(*decode(await self._read()))
            while self._behind:  # the message before them was lost with its blocks
                self._open(*self._behind.popleft())
        finally:
            self._lender.close()
            self._writer.close()

    async def _read(self) -> list[Frame]:
        (count,) = _COUNT.unpack(await self._reader.readexactly(_COUNT.size))
        sizes = struct.unpack(f"<{count}Q", await self._reader.readexactly(8 * count))
        return [await self._reader.readexactly(size) for size in sizes]

    def send(self, header: Header, frames: Sequence[Frame] = ()) -> None:
        """Send a message; harmless when the connection has ended."""
        header, left = self._lender.lend("", header, frames)
        self._write(header, left)

    def _write(self, header: Header, frames: Sequence[Frame] = ()) -> None:
        if self._writer.is_closing():
            return
        parts = encode(header, frames)
        sizes = struct.pack(f"<{len(parts)}Q", *map(len, parts))
        for part in itertools.chain([_COUNT.pack(len(parts)) + sizes], parts):
            self._writer.write(part)

    def close(self) -> None:
        """Close it, once what was sent has left."""
        self._writer.close()

    def abort(self) -> None:
        """Close it now, as nobody reads at the other end; what that has said is still heard."""
        self._writer.transport.abort()

    async def settled(self) -> None:
        """Wait until the other end has opened all blocks that were sent; not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                while self._lender.has_lent and not self._writer.is_closing():
                    await asyncio.sleep(_LOOK_S)

    async def closed(self) -> None:
        """Wait until it is closed; not for ever, as the other end may be stopped."""
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), _CLOSE_S)

    # --- blocks ------------------------------------------------------------------------

    def _take(self, header: Header, frames: list[Frame]) -> None:
        if header["op"] in ANSWERS:
            self._on_answer(header)
        elif self._missing is None:
            self._open(header, frames)
        elif header.pop(_AGAIN, None) == self._missing:
            self._missing = None
            self._on_message(header, frames)
            while self._behind and self._missing is None:
                self._open(*self._behind.popleft())
        else:
            self._behind.append((header, frames))

    def _open(self, header: Header, frames: list[Frame]) -> None:
        whole, answer = borrow(header, frames, holds=self._holds)
        if answer is not None:
            self._write(answer)
        if whole is not None:
            self._on_message(header, whole)
        elif answer is not None:
            self._missing = answer["id"]

    def _on_answer(self, header: Header) -> None:
        loan = self._lender.answered(header)
        if loan is not None:
            self._on_refused(loan.frames, header)
            self._write({**loan.header, _AGAIN: header["id"]}, loan.frames)
