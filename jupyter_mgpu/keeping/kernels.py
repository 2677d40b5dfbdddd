"""The keeper's side: which kernel is attached, what it asks for, and what happens without one."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any

from jupyter_mgpu.errors import AttachError
from jupyter_mgpu.keeping import snapshot
from jupyter_mgpu.keeping.connection import Connection, serve_streams
from jupyter_mgpu.keeping.engine_requests import EngineRequests
from jupyter_mgpu.keeping.messages import describe_error, describe_status, make_task
from jupyter_mgpu.owner.owner_loop import OwnerLoop
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.wire import Frame, Header

SOCKET = "kernel.sock"
"""Where a kernel attaches, in the pool's folder."""

_Answer = Callable[..., Any | Awaitable[Any]]


class Kernels:
    """Lets one kernel at a time use a kept pool. All methods run in the owner's event loop.

    Args:
        request: What was asked for when the pool was started.

    Attributes:
        core: The pool's owner, from `own` on.
        session: How many kernels were attached so far.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.session = 0
        self._request = dict(request)
        self.core: OwnerLoop
        self._requests: EngineRequests
        self._is_ready = False
        # Waits for the pool's start, or for the end of its own earlier connection.
        self._next: tuple[Connection, Header] | None = None
        self._current: Connection | None = None
        self._kernel: Mapping[str, Any] = {}
        self._pidfd = -1  # the kernel's
        self._server: asyncio.AbstractServer | None = None
        self._last_task: str | None = None  # the pool ends with it
        self._lost_loops: set[str] = set()  # of the last kernel, by name

    # --- life --------------------------------------------------------------------------

    def own(self, core: OwnerLoop) -> None:
        """Take the pool's owner, before it tells its first event."""
        self.core = core
        self._requests = EngineRequests(core)

    async def serve(self) -> None:
        """Let kernels attach, now that the pool is ready."""
        path = self.core.plan.folder / SOCKET
        self._server = await serve_streams(self.take_in, path)
        path.chmod(0o600)
        self._is_ready = True
        self._greet_next()

    def tell_first(self, header: Header) -> None:
        """Tell the kernel that waits for the start of the pool how that goes."""
        if self._next is not None:
            self._next[0].send(header)

    async def take_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear a kernel until it ends or lets go."""

        def hear(header: Header, frames: list[Frame]) -> None:
            if connection is self._current:
                self._do(connection, header, frames)
            elif header["op"] == "hello" and self._is_ready:
                self._greet(connection, header)
            elif header["op"] == "hello":
                self._next = connection, header

        connection = Connection(reader, writer, hear, on_refused=self._refused, holds=True)
        try:
            await connection.run()
        finally:
            if self._next is not None and self._next[0] is connection:
                self._next = None
            if connection is self._current:
                self._left()
                self._greet_next()

    def _greet_next(self) -> None:
        waiting, self._next = self._next, None
        if waiting is not None:
            self._greet(*waiting)

    def _refused(self, frames: Sequence[Frame], answer: Header) -> None:
        self.core.store.refused(frames, answer)

    def _greet(self, connection: Connection, hello: Header) -> None:
        refusal = self._refusal(hello)
        if refusal is not None:
            connection.send({"op": "failed", "error": describe_error(AttachError(refusal))})
            connection.close()
            return
        if self._current is not None:  # the same kernel has let go: first hear all that it has said
            self._next = connection, hello
            return
        self._current, self._kernel = connection, hello
        self._requests.follow(hello["folder"], hello["path"])
        self.core.set_kernel(hello["pid"], hello["kernel_id"], hello["notebook"])
        facts = snapshot.take(self.core, self._request)
        facts["modules"] = sorted(self._requests.modules)
        facts["lost_loops"] = sorted(self._lost_loops)
        self._lost_loops.clear()
        connection.send({"op": "welcome", "session": self.session, **facts})
        self.session += 1
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """See the kernel's end also where a process that it has forked holds the connection."""
        try:
            self._pidfd = os.pidfd_open(connection.peer_pid())
        except OSError:  # it has ended, or is in another container: the connection tells
            return
        self.core.loop.add_reader(self._pidfd, self._kernel_ended, connection)

    def _kernel_ended(self, connection: Connection) -> None:
        self._unwatch()
        connection.abort()

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            self.core.loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _refusal(self, hello: Header) -> str | None:
        name, own_version = self.core.plan.name, version("jupyter_mgpu")
        if hello["version"] != own_version:
            return (
                f"The pool {name!r} was started by jupyter_mgpu {own_version}, and "
                f"this kernel has {hello['version']}. Its tasks go on, and their results can be "
                f"read with tasks.load(name); `jupyter mgpu stop {name}` ends it."
            )
        if self._current is not None and hello["pid"] != self._kernel["pid"]:
            notebook = self._kernel["notebook"] or "another notebook"
            return (
                f"The pool {name!r} is attached to the kernel of {notebook} (process "
                f"{self._kernel['pid']}), and one kernel at a time can use it. `%parpool detach` "
                "there, or the end of that kernel, makes it free. `jupyter mgpu tasks` shows its "
                "tasks meanwhile."
            )
        return None

    def _left(self) -> None:
        """Go on without a kernel: what only it could take or answer comes to an end."""
        self._current = None
        self._unwatch()
        if self.core.is_closing:
            return
        pid = self._kernel["pid"]
        self.core.store.remove_files(store_name(pid))
        self._requests.kernel_left()
        for task in list(self.core.scheduler.tasks.values()):
            if needs_kernel(task):
                self.core.scheduler.cancel(task.id)
                if task.header.get("loop") is not None:
                    self._lost_loops.add(task.name)
        self.core.set_kernel(None, None, None)

    async def close(self) -> None:
        """Say goodbye: what was told so far still arrives."""
        if self._server is not None:
            self._server.close()
        last = self._current or (self._next and self._next[0])
        if last:
            await last.settled()
            last.close()
            await last.closed()

    # --- events ------------------------------------------------------------------------

    def on_event(self, header: Header, frames: list[Frame]) -> None:
        """Take an event of the owner."""
        if header["op"] == "ended" and header["task"] == self._last_task:
            self.core.loop.call_soon(self.core.stop, "its task has ended")
        session = None if self._current is None else self.session - 1
        if self._requests.take(header, session) and self._current is not None:
            self._current.send({"op": "event", "event": header}, frames)

    # --- requests ----------------------------------------------------------------------

    def _do(self, connection: Connection, header: Header, frames: list[Frame]) -> None:
        """Do what the kernel asks for, and answer if it waits."""

        def reply(outcome: dict[str, Any]) -> None:
            if "id" in header:
                connection.send({"op": "answer", "id": header["id"], **outcome})

        async def wait(value: Awaitable[Any]) -> None:
            try:
                reply({"value": await value})
            except Exception as error:  # noqa: BLE001 - as below
                reply({"error": describe_error(error)})

        try:
            value = self._operations()[header["name"]](frames, **header["args"])
        except Exception as error:  # noqa: BLE001 - the kernel gets it
            reply({"error": describe_error(error)})
            return
        if isinstance(value, Awaitable):
            asyncio.ensure_future(wait(value))  # noqa: RUF006 - it ends soon
        else:
            reply({"value": value})

    def _operations(self) -> dict[str, _Answer]:
        core, scheduler = self.core, self.core.scheduler
        return {
            "submit": self._submit,
            "resend": self._resend,
            "cancel": lambda _, task: scheduler.cancel(task),
            "withdraw": lambda _, tasks: sorted(scheduler.withdraw(tasks)),
            "interrupt": lambda _, task, force: core.interrupt(task, force=force),
            "request_stop": lambda _, task, after: core.request_stop(task, after),
            "expect_collectives": lambda _: core.expect_collectives(),
            "restart": lambda _, ranks: core.restart(ranks),
            "flush_journal": lambda _: core.flush_journal(),
            "set_idle_timeout": lambda _, timeout_s: core.set_idle_timeout(timeout_s),
            "rpc": self._rpc,
            "post": lambda frames, rank, header: core.post(core.engines[rank], header, frames),
            "post_to_all": lambda _, header: core.post_to_all(header),
            "answer": self._answer,
            "status": lambda _: describe_status(core.status()),
            "far_hosts": lambda _: core.far_hosts(),
            "controller": lambda _: self._controller(),
            "stop": lambda _, reason: core.stop(reason),
        }

    def _submit(self, frames: list[Frame], task: Mapping[str, Any]) -> None:
        made = make_task(task, frames)
        made.info["session"] = self.session - 1
        if (state := made.header.get("follow")) is not None:
            self._requests.follow(state["folder"], state["path"])
        if made.header.get("ends_pool"):
            self._last_task = made.id
        self.core.submit(made)

    def _resend(self, frames: list[Frame], task: str, rank: int) -> None:
        self._requests.resent(task, rank)
        self.core.scheduler.resend(task, rank, frames)

    def _rpc(self, _: list[Frame], rank: int, name: str, args: dict[str, Any]) -> Awaitable[Any]:
        future: Future[Any] = Future()
        self.core.ask(future, rank, name, args)
        return asyncio.wrap_future(future)

    async def _controller(self) -> tuple[str, int]:
        number = await self.core.controller.ensure()
        return str(self.core.plan.folder), number

    def _answer(self, frames: list[Frame], engine: str, header: Header) -> None:
        self._requests.answered(engine, header["id"])
        self.core.answer(engine, header, frames)


def needs_kernel(task: Task) -> bool:
    """Tell whether a task is of no use without the kernel that has submitted it.

    A cell that runs may do something to the engines, and ends by itself; one that waits would come
    as a surprise to whoever attaches next. The results of a loop are collected by its kernel.
    """
    if task.header.get("loop") is not None:
        return True
    return task.state == "queued" and task.is_gang and not task.header.get("recorded")


def store_name(pid: int) -> str:
    """Name the files of a kernel's blocks among those in the pool's folder."""
    return f"kernel{pid}"
