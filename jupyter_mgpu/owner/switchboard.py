"""The owner's side of the direct connections: authenticated, one per engine and channel."""

import asyncio
import functools
import hmac
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import zmq

from jupyter_mgpu import shared_memory
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import OwnerError
from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.owner.host_lending import HostLending
from jupyter_mgpu.shared_memory import Borrowed
from jupyter_mgpu.transport.far_port import FarPort
from jupyter_mgpu.transport.routing import receive_all, send_to
from jupyter_mgpu.wire import Frame, Header, decode, encode

CHANNELS = ("work", "control")


class Switchboard:
    """One socket that the engines of this machine connect to, and one for those of other hosts.

    A connection is known by its name, such as `work:0.3` (channel, rank, how often the rank was
    started), and is heard only after a hello with the pool's secret.

    Args:
        url: Where to listen; inside a folder that only this user may enter.
        token: The secret.
        find: Returns the engine of a name such as `0.3`, None for one that was replaced.
        on_hello: Called when both channels of an engine are known.
        on_message: Called with each other message of an engine.
        store: Made the blocks among the messages' frames.
        loop: The owner's event loop.
        far: The socket for engines of other hosts, if there are any.
        holds: Whether what engines send can be lent on.
    """

    def __init__(
        self,
        url: str,
        token: str,
        find: Callable[[str], EngineRecord | None],
        on_hello: Callable[[EngineRecord], None],
        on_message: Callable[[EngineRecord, Header, list[Frame]], None],
        store: shared_memory.Store,
        loop: asyncio.AbstractEventLoop,
        far: FarPort | None = None,
        *,
        holds: bool = False,
    ) -> None:
        self._far = far
        self._lending: HostLending | None = None
        if far is not None:
            far.listener = functools.partial(self._take_parts, is_far=True)
            self._lending = HostLending(self._send_rest, far.send_guard, self._say, loop)
            far.guard_listener = self._lending.heard
        self._token = token
        self._find = find
        self._on_hello = on_hello
        self._on_message = on_message
        self._store = store
        self._lender = shared_memory.Lender()
        self._loop = loop
        self._holds = holds
        self._known: set[str] = set()
        # What engines sent after a message whose buffers are being copied.
        self._behind: dict[str, list[tuple[Header, list[Frame]]]] = {}
        self._numbers = itertools.count(1)
        self._questions: dict[int, tuple[int, Future[Any]]] = {}
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.sndhwm = self._router.rcvhwm = 0
        self._router.linger = 0
        try:
            self._router.bind(url)
        except zmq.ZMQError:
            self._context.destroy()  # else the end of this process would wait for it
            raise
        loop.add_reader(self._router.fileno(), self._receive)

    def send_work(self, engine: EngineRecord, header: Header, frames: Sequence[Frame]) -> None:
        """Send to an engine's main thread."""
        self._send("work", engine, header, frames)

    def send_control(
        self, engine: EngineRecord, header: Header, frames: Sequence[Frame] = ()
    ) -> None:
        """Send to an engine's control thread."""
        self._send("control", engine, header, frames)

    def _send(
        self, channel: str, engine: EngineRecord, header: Header, frames: Sequence[Frame]
    ) -> None:
        if engine.is_far and self._lending is not None:
            self._lending.send(channel, engine, header, frames)
            return
        header, left = self._lender.lend(f"{channel}:{engine.name}", header, frames)
        shared = sum(map(len, frames)) - sum(map(len, left)) if left is not frames else 0
        self._send_rest(channel, engine, header, left, shared)

    def _send_rest(
        self,
        channel: str,
        engine: EngineRecord,
        header: Header,
        frames: Sequence[Frame],
        shared: int = 0,
    ) -> None:
        """Send what is left of a message of which some bytes were lent."""
        engine.sent_bytes += shared
        engine.shared_bytes += shared
        name = f"{channel}:{engine.name}"
        parts = encode(header, frames)
        engine.sent_bytes += sum(map(len, parts))
        if engine.is_far and self._far is not None:
            self._far.send(name, parts)
        else:
            send_to(self._router, name, parts, self._loop, self._receive)

    def ask(
        self, future: Future[Any], engine: EngineRecord, name: str, args: dict[str, Any]
    ) -> None:
        """Ask an engine's control thread; the future gets the answer, or an OwnerError."""
        number = next(self._numbers)
        self._questions[number] = (engine.rank, future)
        self.send_control(engine, {"op": "rpc", "id": number, "name": name, "args": args})

    def fail_questions(self, message: str, rank: int | None = None) -> None:
        """Let those who wait for an answer know that there will be none."""
        for number, (asked, future) in list(self._questions.items()):
            if rank is None or asked == rank:
                self._questions.pop(number)
                if future.set_running_or_notify_cancel():
                    future.set_exception(OwnerError(message))

    def forget(self, engine: EngineRecord) -> None:
        """Hear an engine no more, and take back what it has not mapped."""
        self._store.remove_files(engine.name)
        self._behind.pop(engine.name, None)
        for name in (f"{channel}:{engine.name}" for channel in CHANNELS):
            self._lender.forget(name)
            self._known.discard(name)
        if self._lending is not None:
            self._lending.forget(engine)

    def close(self) -> None:
        """Close the socket."""
        self._loop.remove_reader(self._router.fileno())
        self._router.close()
        self._lender.close()
        self._behind.clear()
        if self._lending is not None:
            self._lending.close()
        self._context.term()

    def _receive(self) -> None:
        receive_all(self._router, self._take_parts, self._loop, self._receive)

    def _take_parts(self, name: str, parts: Sequence[Frame], *, is_far: bool = False) -> None:
        try:
            header, frames = decode(parts)
        except (ValueError, IndexError):
            return  # not one of our engines
        engine = self._find(name.partition(":")[2])
        if engine is not None and engine.is_far == is_far:
            engine.received_bytes += sum(map(len, parts))
            self._take(name, engine, header, frames)

    def _take(self, name: str, engine: EngineRecord, header: Header, frames: list[Frame]) -> None:
        if header.get("op") == "hello":
            if hmac.compare_digest(str(header.get("token")), self._token):
                self._known.add(name)
                if all(f"{channel}:{engine.name}" in self._known for channel in CHANNELS):
                    if engine.is_far and self._lending is not None:
                        self._lending.join(engine)
                    self._on_hello(engine)
        elif name in self._known:
            self._on_known(engine, header, frames)

    def _on_known(self, engine: EngineRecord, header: Header, frames: list[Frame]) -> None:
        if header["op"] == "reply":
            self._answer(header)
        elif header["op"] in shared_memory.ANSWERS:
            self._on_answer(engine, header)
        else:
            self._on_event(engine, header, frames)

    def _on_event(self, engine: EngineRecord, header: Header, frames: list[Frame]) -> None:
        behind = self._behind.get(engine.name)
        if behind is not None:
            behind.append((header, frames))
        elif not (shared_memory.is_copied(header) and self._copy(engine, header, frames)):
            self._on_borrowed(engine, header, frames, self._borrow(header, frames))

    def _copy(self, engine: EngineRecord, header: Header, frames: list[Frame]) -> bool:
        """Borrow in another thread, which nobody waits for; False if there is none."""
        try:
            copying = call_in_thread(lambda: self._borrow(header, frames), "mgpu-copy")
        except RuntimeError:  # there are no more threads
            return False
        self._behind[engine.name] = []
        asyncio.wrap_future(copying, loop=self._loop).add_done_callback(
            lambda copied: self._on_copied(engine, header, frames, copied)
        )
        return True

    def _borrow(self, header: Header, frames: list[Frame]) -> Borrowed:
        return shared_memory.borrow(header, frames, holds=self._holds)

    def _on_copied(
        self,
        engine: EngineRecord,
        header: Header,
        frames: list[Frame],
        copied: "asyncio.Future[Borrowed]",
    ) -> None:
        behind = self._behind.pop(engine.name, None)
        if behind is None:
            return  # the engine has died meanwhile, or the pool has ended
        try:
            self._on_borrowed(engine, header, frames, copied.result())
        finally:
            self._catch_up(engine, iter(behind))

    def _catch_up(self, engine: EngineRecord, behind: Iterator[tuple[Header, list[Frame]]]) -> None:
        """Take what came after a message; one that raises holds up none of the others."""
        try:
            for message in behind:
                self._on_event(engine, *message)
        except BaseException:
            self._catch_up(engine, behind)
            raise

    def _on_borrowed(
        self, engine: EngineRecord, header: Header, frames: list[Frame], borrowed: Borrowed
    ) -> None:
        whole, answer = borrowed
        if answer is not None:
            shared = sum(map(len, whole or frames)) - sum(map(len, frames))
            engine.received_bytes += shared
            engine.shared_bytes += shared
            self.send_control(engine, answer)
        if whole is not None:
            self._on_message(engine, header, whole)

    def _on_answer(self, engine: EngineRecord, header: Header) -> None:
        if engine.is_far and self._lending is not None:
            self._lending.answered(engine, header)
            return
        loan = self._lender.answered(header)
        if loan is None:
            return
        sentence = self._store.refused(loan.frames, header)
        if sentence is not None:
            self._say(engine, sentence)
        channel = loan.peer.partition(":")[0]
        self._send_rest(channel, engine, loan.header, loan.frames)

    def _say(self, engine: EngineRecord, sentence: str) -> None:
        self._on_message(engine, {"op": "notice", "message": sentence}, [])

    def _answer(self, header: Header) -> None:
        _, future = self._questions.pop(header["id"], (0, None))
        if future is None or not future.set_running_or_notify_cancel():
            return
        if "failure" in header:
            record = header["failure"]
            future.set_exception(OwnerError(f"{record['ename']}: {record['evalue']}"))
        else:
            future.set_result(header.get("value"))
