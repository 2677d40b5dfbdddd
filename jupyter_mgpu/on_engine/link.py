"""The engine's direct connection to the owner: work on the main loop, control on a thread.

Two sockets. Work: received by the main thread's event loop, so that a task starts without a
thread switch; sent to by any thread. Control: received by a thread of its own, so that an
interrupt or a question is answered while the main thread is blocked in C++.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from jupyter_mgpu import curve, shared_memory, wire_pieces
from jupyter_mgpu.on_engine import imports
from jupyter_mgpu.shared_memory import Store
from jupyter_mgpu.wire import Frame, Header, decode, encode

Handler = Callable[[Header, list[Frame]], None]

_OWNER = "owner"

KEEPALIVE_S = 30
"""Firewalls forget connections on which nothing is said, most after some minutes."""
EXIT_CUT_OFF = 74
"""How an engine ends whose connection to another host was broken: EX_IOERR of sysexits.h."""


class EngineLink:
    """Both connections of one engine.

    Args:
        url: Where the owner listens.
        name: This engine's name, such as `0.3`: its rank and how often it was started.
        token: The pool's secret; the owner drops connections that do not know it.
        loop: The main thread's event loop.
        keys: What proves this engine to an owner on another host; None on the same one.
    """

    def __init__(
        self,
        url: str,
        name: str,
        token: str,
        loop: asyncio.AbstractEventLoop,
        keys: str | None = None,
    ) -> None:
        self._loop = loop
        self._token = token
        self._keys = keys
        self._lock = threading.Lock()
        self._context = zmq.Context()
        self._monitors: list[zmq.Socket[bytes]] = []
        self._work = self._connect(url, f"work:{name}")
        self._control = self._connect(url, f"control:{name}")
        self._on_work: Handler = _ignore
        self._lender = shared_memory.Lender()
        self.store = Store(Path(url.removeprefix("ipc://")).parent, name, lends=True)
        if keys is not None:
            self.store.close()  # the owner could not open what is shared on this host

    def _connect(self, url: str, identity: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.identity = identity.encode()
        socket.linger = 1000
        socket.sndhwm = socket.rcvhwm = 0
        if self._keys is not None:
            curve.use_client_keys(socket, self._keys)
            # What was under way when a connection broke is lost, and nobody would know.
            socket.reconnect_ivl = -1
            socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, KEEPALIVE_S
            self._monitors.append(socket.get_monitor_socket(zmq.EVENT_DISCONNECTED))
            socket.ipv6 = "[" in url
        socket.connect(url)
        return socket

    def start(self, on_work: Handler, on_control: Handler, hello: Header) -> None:
        """Say hello, then hand messages to the handlers until the process ends.

        Args:
            on_work: Called on the main thread.
            on_control: Called on the control thread.
            hello: What the owner must know of this engine.
        """
        self._on_work = on_work
        threading.Thread(
            target=self._serve_control, args=(on_control,), name="mgpu-control", daemon=True
        ).start()
        self._loop.add_reader(self._work.fileno(), self._drain)
        self.emit({"op": "hello", "token": self._token, **hello}, [])
        self._drain()

    def emit(self, header: Header, frames: list[Any]) -> None:
        """Send a message to the owner; any thread may call it."""
        self._send(*self._lender.lend(_OWNER, header, frames))

    @imports.protected  # half a message would spoil all that come after it
    def _send(self, header: Header, frames: Sequence[Frame]) -> None:
        parts = encode(header, frames)
        with self._lock:
            if self._keys is not None and wire_pieces.is_large(parts):
                self._send_pieces(parts)
            elif len(parts) == 1:
                self._work.send(parts[0])
            else:
                self._work.send_multipart(parts)  # copied: the task may go on and change them
            is_readable = int(self._work.getsockopt(zmq.EVENTS)) & zmq.POLLIN
        if is_readable:
            # zmq's descriptor tells of new messages once: sending may have used that up.
            self._loop.call_soon_threadsafe(self._drain)

    def _send_pieces(self, parts: Sequence[Frame]) -> None:
        # Copied where the task may go on and change them: nobody does that to what is alone.
        is_fixed = all(isinstance(part, bytes) or shared_memory.is_alone(part) for part in parts)
        for message in wire_pieces.cut(parts):
            self._work.send_multipart(message, copy=not is_fixed)

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not int(self._work.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                    return
                parts = self._work.recv_multipart(copy=False)
            self._receive(*decode([part.buffer for part in parts]), self._on_work)

    def _receive(self, header: Header, frames: list[Frame], handler: Handler) -> None:
        whole, answer = shared_memory.borrow(header, frames)
        if answer is not None:
            self._send(answer, [])
        if whole is not None:
            handler(header, whole)

    def _serve_control(self, on_control: Handler) -> None:
        self._control.send_multipart(encode({"op": "hello", "token": self._token}))
        poller = zmq.Poller()
        for watched in (self._control, *self._monitors):
            poller.register(watched, zmq.POLLIN)
        while True:
            if self._monitors and self._control not in dict(poller.poll()):
                os._exit(EXIT_CUT_OFF)
            header, frames = decode(self._control.recv_multipart())
            if header["op"] in shared_memory.ANSWERS:
                self._on_answer(header)
            else:
                self._receive(header, frames, on_control)

    def _on_answer(self, header: Header) -> None:
        loan = self._lender.answered(header)
        if loan is None:
            return
        sentence = self.store.refused(loan.frames, header)
        if sentence is not None:
            self._send({"op": "notice", "message": sentence}, [])
        if any(map(shared_memory.is_lent, loan.frames)):
            self.emit(loan.header, self.store.place(loan.frames))  # in another way
        else:
            self._send(loan.header, loan.frames)

    def reply(self, header: Header, frames: list[Any]) -> None:
        """Answer on the control connection; only the control thread may call it."""
        self._control.send_multipart(encode(header, frames))


def _ignore(_header: Header, _frames: list[Frame]) -> None:
    """Drop what comes before the engine is there."""
