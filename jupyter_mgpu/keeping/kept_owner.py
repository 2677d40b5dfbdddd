"""The owner of a kept pool, as a kernel holds it: asked over a connection to the keeper."""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from jupyter_mgpu.engines import PoolStatus
from jupyter_mgpu.errors import MgpuError, PoolClosedError, SelectionError
from jupyter_mgpu.keeping.connection import Connection
from jupyter_mgpu.keeping.kernels import store_name
from jupyter_mgpu.keeping.messages import describe_task, make_error, make_status
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.owner.engine_record import describe_exit, read_tail
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.owner.pool_owner import Listener
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.shared_memory import Store, is_shared
from jupyter_mgpu.transport.controller import connect_client
from jupyter_mgpu.wire import Frame, Header

ANSWER_S = 30.0
STATUS_S = 2.0
AGE_S = 1.0
REAP_S = 2.0
LOG = "keeper.log"
"""In the pool's folder: what the keeper writes, which is nothing unless it fails."""
_LAST_WORDS = 4096
FIXED_SIZE = (
    "A kept pool keeps its size and its GPUs. `%parpool stop` ends it, or add --restart: its tasks "
    "and variables are lost then."
)


class KeptOwner:
    """Hands requests to the keeper of one pool, and takes its events. Any thread may call.

    Args:
        name: The pool's name.
        folder: Its private folder.
        connection: Leads to the keeper.
        kernel: `kernel_id` and `notebook` of this kernel.
        say: Called with each sentence that the user should read while the pool starts.
        process: The keeper, where this kernel has started it.

    Attributes:
        store: Puts large data of the pool's messages into shared memory.
        snapshot: What the keeper told when this kernel was attached.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        connection: socket.socket,
        kernel: Mapping[str, Any],
        say: Callable[[str], None],
        process: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.store = Store(folder, store_name(os.getpid()), keeps_recent=True)
        self.snapshot: dict[str, Any] = {}
        self._socket = connection
        self._kernel = kernel
        self._say = say
        self._process = process
        self._attached: Future[None] = Future()
        self._listener: Listener | None = None
        self._early: list[tuple[Header, list[Frame]]] | None = []  # before `start`
        self._questions: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._last_status: PoolStatus | None = None
        self._is_closing = self._expects = False
        self._client: Any = None
        self._has_begun = threading.Event()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mgpu-owner", daemon=True)

    # --- life --------------------------------------------------------------------------

    def attach(self) -> Self:
        """Wait until the keeper has let this kernel in, and the pool is ready.

        Raises:
            AttachError: If it belongs to another kernel.
            MgpuError: What the start of the pool has failed with.
        """
        self._thread.start()
        try:
            self._attached.result()
        except BaseException:  # also a Stop
            self.detach()
            self.wait(ANSWER_S)
            raise
        return self

    def hear(self, listener: Listener) -> Self:
        """Tell the events to a listener, once `start` was called."""
        self._listener = listener
        return self

    def start(self) -> Future[None]:
        """Tell the listener what has happened since this kernel was attached, and what will."""
        self._call(self._tell_early)
        return self._attached

    def detach(self) -> None:
        """Let go of the pool, which goes on; harmless when that has happened."""
        self._is_closing = True
        with contextlib.suppress(PoolClosedError):
            self._call(lambda: self._loop.create_task(self._close()))

    def stop(self, *, reason: str = "stopped") -> None:
        """End the pool: busy engines at once. Returns before it has ended; see `wait`."""
        self._is_closing = True
        with contextlib.suppress(PoolClosedError):
            self._tell("stop", reason=reason)

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
        reader, writer = await asyncio.open_unix_connection(sock=self._socket)
        self._connection = Connection(
            reader, writer, self._take, on_refused=self.store.refused, holds=False
        )
        self._has_begun.set()
        hello = {"pid": os.getpid(), "version": version("jupyter_mgpu"), **self._kernel}
        self._connection.send({"op": "hello", **hello})
        aging = asyncio.ensure_future(self._age())
        try:
            await self._connection.run()
        finally:
            aging.cancel()
            self._on_end()
        await self._connection.closed()

    async def _close(self) -> None:
        await self._connection.settled()
        self._connection.close()

    async def _age(self) -> None:
        while True:
            await asyncio.sleep(AGE_S)
            self.store.age()

    def _on_end(self) -> None:
        """Let everybody know who waits for the keeper."""
        self.store.close()
        if self._client is not None:
            self._client.close(linger=0)  # else its threads hold up the end of this process
        for future in self._questions.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(self._closed_error())
        self._questions.clear()
        if not self._attached.done():
            self._attached.set_exception(MgpuError(self._describe_end()))
        elif not self._is_closing:
            self._is_closing = True
            self._tell_listener(
                {"op": "pool_ended", "reason": self._describe_end(), "is_lost": True}, []
            )

    def _describe_end(self) -> str:
        how = "has ended"
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                how = describe_exit(self._process.wait(REAP_S))
        pid = self._process.pid if self._process is not None else self.snapshot.get("pid", "?")
        words = ""
        with contextlib.suppress(OSError):
            words = read_tail(self.folder / LOG, _LAST_WORDS).strip()
        tail = f" Its last words:\n{words}" if words else ""
        return f"the keeper of the pool {self.name!r} (process {pid}) {how}.{tail}"

    # --- what the keeper says ----------------------------------------------------------

    def _take(self, header: Header, frames: list[Frame]) -> None:
        operation = header["op"]
        if operation == "event":
            event = header["event"]
            self._is_closing |= event["op"] == "pool_ended"
            self._tell_listener(event, frames)
        elif operation == "answer":
            self._answered(header)
        elif operation == "say":
            self._say(header["message"])
        elif operation == "welcome":
            self.snapshot = header
            self._last_status = make_status(header["status"])
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

    def _call(self, function: Callable[[], object]) -> None:
        self._has_begun.wait()
        if self._has_ended.is_set():
            raise self._closed_error()
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise self._closed_error() from None

    def _closed_error(self) -> PoolClosedError:
        return PoolClosedError(f"The pool {self.name!r} has ended. Start one with %parpool.")

    def _tell(self, operation: str, /, frames: Sequence[Frame] = (), **args: Any) -> None:
        header = {"op": "do", "name": operation, "args": args}
        self._call(lambda: self._connection.send(header, frames))

    def _ask(self, operation: str, frames: Sequence[Frame] = (), /, **args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        number = next(self._numbers)

        def ask() -> None:
            self._questions[number] = future
            header = {"op": "do", "id": number, "name": operation, "args": args}
            self._connection.send(header, frames)

        self._call(ask)
        return future

    def submit(self, task: Task) -> None:
        """Queue a task; harmless if it was before.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        if self._is_closing:
            raise self._closed_error()
        if task.info.setdefault("sent", False):
            return
        described, frames = describe_task(task)
        if not any(map(is_shared, frames)):
            self._tell("submit", frames, task=described)
            taken = None
        else:  # this kernel may die as soon as the keeper holds it
            taken = self._ask("submit", frames, task=described)
        task.info["sent"] = True
        task.frames = []
        if taken is not None:
            with contextlib.suppress(TimeoutError):
                taken.result(ANSWER_S)

    def resend(self, task_id: str, rank: int, frames: list[Frame]) -> None:
        """Send a running cell again to a rank that lacked some of the names' parts."""
        self._tell("resend", frames, task=task_id, rank=rank)

    def cancel(self, task_id: str) -> None:
        """Take a task out of the queue, or end it while it runs."""
        self._tell("cancel", task=task_id)

    def withdraw(self, task_ids: Sequence[str]) -> set[str]:
        """Take those tasks that still wait out of the queue; return their ids.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        try:
            return set(self._ask("withdraw", tasks=list(task_ids)).result(ANSWER_S))
        except (TimeoutError, CancelledError):
            raise self._closed_error() from None

    def interrupt(self, task_id: str, *, force: bool = False) -> None:
        """Interrupt a running task; with `force`, replace the engines that still run it."""
        self._tell("interrupt", task=task_id, force=force)

    def request_stop(self, task_id: str, after: StopAfter = "step") -> None:
        """Ask a task to end by itself, after its step or its epoch."""
        self._tell("request_stop", task=task_id, after=after)

    def expect_collectives(self) -> None:
        """Make the first process group quick; harmless when the pool has ended."""
        if not self._expects:
            self._expects = True
            with contextlib.suppress(PoolClosedError):
                self._tell("expect_collectives")

    def restart(self, ranks: Sequence[int] = ()) -> None:
        """Replace the engines of some ranks (all by default)."""
        self._tell("restart", ranks=list(ranks))

    def flush_journal(self) -> None:
        """Have the records of ended tasks on disk; harmless when the pool has ended."""
        with contextlib.suppress(PoolClosedError, TimeoutError, CancelledError):
            self._ask("flush_journal").result(ANSWER_S)

    def set_idle_timeout(self, timeout_s: float | None) -> Future[None]:
        """Let the pool end after another time without use; None for never."""
        return self._ask("set_idle_timeout", timeout_s=timeout_s)

    def grow(self, plans: Sequence[EnginePlan]) -> Future[None]:  # noqa: ARG002 - as other owners
        """Refuse: a kept pool keeps its size."""
        raise SelectionError(FIXED_SIZE)

    def shrink(self, size: int) -> Future[None]:  # noqa: ARG002 - as other owners
        """Refuse: a kept pool keeps its size."""
        raise SelectionError(FIXED_SIZE)

    def rpc(self, rank: int, name: str, /, **args: Any) -> Future[Any]:
        """Ask an engine something on its control channel, also while it is busy."""
        return self._ask("rpc", rank=rank, name=name, args=args)

    def post(self, rank: int, header: Header, frames: Sequence[Frame] = ()) -> None:
        """Send an engine's main thread a message without an answer, before the next task."""
        self._tell("post", frames, rank=rank, header=header)

    def post_to_all(self, header: Header) -> None:
        """Send the main thread of every engine a message; harmless when the pool has ended."""
        with contextlib.suppress(PoolClosedError):
            self._tell("post_to_all", header=header)

    def answer(self, engine: str, header: Header, frames: Sequence[Frame]) -> None:
        """Answer what an engine has asked its kernel; harmless when the pool has ended."""
        with contextlib.suppress(PoolClosedError):
            self._tell("answer", frames, engine=engine, header=header)

    def client(self) -> Any:
        """Connect ipyparallel's own client; starts its controller at the first call."""
        if self._client is None:
            folder, number = self._ask("controller").result(ANSWER_S)
            self._client = connect_client(Path(folder), number)
        return self._client

    # --- what it is --------------------------------------------------------------------

    def status(self) -> PoolStatus:
        """Return what people see of the pool; the last that is known where that does not answer."""
        with contextlib.suppress(PoolClosedError, TimeoutError, CancelledError):
            self._last_status = make_status(self._ask("status").result(STATUS_S))
        if self._last_status is None:
            raise self._closed_error()
        return self._last_status

    def far_hosts(self) -> list[dict[str, Any]]:
        """Return nothing: all engines of a kept pool are on this machine."""
        return []

    @property
    def _engines(self) -> dict[int, dict[str, Any]]:
        return {engine["rank"]: engine for engine in self.snapshot["engines"]}

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have an engine, or get one again."""
        return tuple(self._engines)

    @property
    def gpu_uuids(self) -> dict[int, tuple[str, ...]]:
        """The GPUs of each rank that has any."""
        return {
            rank: tuple(engine["gpu_uuids"])
            for rank, engine in self._engines.items()
            if engine["gpu_uuids"]
        }

    @property
    def record_path(self) -> Path:
        """The pool's record in the runtime folder."""
        return Path(self.snapshot["record_path"])

    def device(self, rank: int) -> str:
        """Return what a rank runs on, in words."""
        return str(self._engines[rank]["device"])

    def log(self, rank: int) -> Path:
        """Return the file with all that a rank has printed."""
        return Path(self._engines[rank]["log"])
