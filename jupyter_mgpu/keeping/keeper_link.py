"""A kernel's connection to the keeper of one pool, in a thread of its own."""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any, BinaryIO

from jupyter_mgpu.errors import MgpuError, PoolClosedError
from jupyter_mgpu.keeping.connection import Connection, open_streams
from jupyter_mgpu.keeping.messages import make_error
from jupyter_mgpu.owner.engine_record import describe_exit
from jupyter_mgpu.owner.pool_owner import Listener
from jupyter_mgpu.shared_memory import Store
from jupyter_mgpu.wire import Frame, Header

AGE_S = 1.0
REAP_S = 2.0
HAND_OVER_S = 1.0
LOG = "keeper.log"
"""In the pool's folder: what the keeper writes, which is nothing unless it fails."""
_LAST_WORDS = 4096


class KeeperLink:
    """Sends requests, and takes answers and events. Any thread may call.

    Args:
        name: The pool's name.
        log: The keeper's; open, as the keeper removes it in the end. It is closed here.
        connection: Leads to the keeper.
        kernel: `kernel_id` and `notebook` of this kernel.
        say: Called with each sentence that the user should read while the pool starts.
        process: The keeper, where this kernel has started it.
        store: Makes the blocks that are sent.
        on_end: Called in the thread when the connection has ended.

    Attributes:
        snapshot: What the keeper told when this kernel was attached.
        is_closing: Whether the pool or the connection ends, by its own will or not.
    """

    def __init__(
        self,
        name: str,
        log: BinaryIO,
        connection: socket.socket,
        kernel: Mapping[str, Any],
        say: Callable[[str], None],
        process: "subprocess.Popen[bytes] | None",
        store: Store,
        on_end: Callable[[], None],
    ) -> None:
        self.snapshot: dict[str, Any] = {}
        self.is_closing = False
        self._name = name
        self._log = log
        self._socket = connection
        self._kernel = kernel
        self._say = say
        self._process = process
        self._store = store
        self._when_ended = on_end
        self._attached: Future[None] = Future()
        self._listener: Listener | None = None
        self._early: list[tuple[Header, list[Frame]]] | None = []  # before `start`
        self._questions: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._has_begun = threading.Event()
        self._has_ended = threading.Event()
        threading.Thread(target=self._run, name="mgpu-owner", daemon=True).start()

    # --- life --------------------------------------------------------------------------

    @property
    def attached(self) -> Future[None]:
        """Done when the keeper has let this kernel in, and the pool is ready; or why not."""
        return self._attached

    def start(self, listener: Listener) -> None:
        """Tell a listener what has happened since this kernel was attached, and what will."""
        self._listener = listener
        self._call(self._tell_early)

    def close(self) -> None:
        """Let go of the pool, once all that was sent has arrived; harmless when it has ended."""
        self.is_closing = True
        with contextlib.suppress(PoolClosedError):
            self._call(lambda: self._loop.create_task(self._close()))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the connection, and so of the pool; False when it took longer."""
        return self._has_ended.wait(timeout)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        finally:
            self._has_begun.set()
            self._has_ended.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        reader, writer = await open_streams(self._socket)
        self._connection = Connection(
            reader, writer, self._take, on_refused=self._store.refused, holds=False
        )
        self._has_begun.set()
        hello = {"pid": os.getpid(), "version": version("jupyter_mgpu"), **self._kernel}
        self._connection.send({"op": "hello", **hello})
        aging = asyncio.ensure_future(self._age())
        try:
            await self._connection.run()
        finally:
            aging.cancel()
            with self._log:
                self._on_end()
        await self._connection.closed()

    async def _close(self) -> None:
        await self._connection.settled()
        self._connection.close()

    async def _age(self) -> None:
        while True:
            await asyncio.sleep(AGE_S)
            self._store.age()

    def _on_end(self) -> None:
        """Let everybody know who waits for the keeper."""
        self._when_ended()
        for future in self._questions.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(self.closed_error())
        self._questions.clear()
        if not self._attached.done():
            self._attached.set_exception(MgpuError(self._describe_end()))
        elif not self.is_closing:
            self.is_closing = True
            reason = self._describe_end()
            self._tell_listener({"op": "pool_ended", "reason": reason, "is_lost": True}, [])

    def _describe_end(self) -> str:
        how = "has ended"
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                how = describe_exit(self._process.wait(REAP_S))
        pid = self._process.pid if self._process is not None else self.snapshot.get("pid", "?")
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LAST_WORDS))
        words = self._log.read().decode(errors="replace").strip()
        tail = f" Its last words:\n{words}" if words else ""
        return f"the keeper of the pool {self._name!r} (process {pid}) {how}.{tail}"

    # --- what the keeper says ----------------------------------------------------------

    def _take(self, header: Header, frames: list[Frame]) -> None:
        operation = header["op"]
        if operation == "event":
            event = header["event"]
            self.is_closing |= event["op"] == "pool_ended"
            self._tell_listener(event, frames)
        elif operation == "answer":
            self._answered(header)
        elif operation == "say":
            self._say(header["message"])
        elif operation == "welcome":
            self.snapshot = header
            self._attached.set_result(None)
        elif operation == "failed":
            self._attached.set_exception(make_error(header["error"]))

    def _tell_listener(self, header: Header, frames: list[Frame]) -> None:
        if self._early is not None:
            self._early.append((header, frames))
        elif self._listener is not None:
            self._listener(header, frames)

    def _tell_early(self) -> None:
        early, self._early = self._early, None
        for header, frames in early or ():
            self._tell_listener(header, frames)

    def _answered(self, header: Header) -> None:
        future = self._questions.pop(header["id"], None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if "error" in header:
            future.set_exception(make_error(header["error"]))
        else:
            future.set_result(header["value"])

    # --- requests ----------------------------------------------------------------------

    def closed_error(self) -> PoolClosedError:
        """Make the error of a request that comes too late."""
        return PoolClosedError(f"The pool {self._name!r} has ended. Start one with %parpool.")

    def _call(self, function: Callable[[], object]) -> None:
        self._has_begun.wait()
        if self._has_ended.is_set():
            raise self.closed_error()
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise self.closed_error() from None

    def tell(self, operation: str, frames: Sequence[Frame] = (), /, **args: Any) -> None:
        """Ask the keeper for something that needs no answer.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        header = {"op": "do", "name": operation, "args": args}
        self._call(lambda: self._connection.send(header, frames))

    def hand_over(self, operation: str, frames: Sequence[Frame] = (), /, **args: Any) -> None:
        """Do what `tell` does, and return when the message has left this process.

        It arrives then, even if this process is killed at once.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        self.tell(operation, frames, **args)
        written = threading.Event()
        self._call(written.set)
        while not written.wait(HAND_OVER_S) and not self._has_ended.is_set():
            pass  # the loop is busy, or this process has no time

    def ask(self, operation: str, frames: Sequence[Frame] = (), /, **args: Any) -> Future[Any]:
        """Ask the keeper for something; the future gets the answer, or the keeper's error.

        Raises:
            PoolClosedError: If the pool has ended; the future has it if that happens later.
        """
        future: Future[Any] = Future()
        number = next(self._numbers)

        def ask() -> None:
            self._questions[number] = future
            header = {"op": "do", "id": number, "name": operation, "args": args}
            self._connection.send(header, frames)

        self._call(ask)
        return future
