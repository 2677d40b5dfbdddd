"""The owner of a kept pool, as a kernel holds it: asked over a connection to the keeper."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, BinaryIO, Self

from jupyter_mgpu.engines import PoolStatus
from jupyter_mgpu.errors import PoolClosedError, SelectionError
from jupyter_mgpu.keeping.asked_hosts import AskedHosts
from jupyter_mgpu.keeping.keeper_link import KeeperLink
from jupyter_mgpu.keeping.kernels import store_name
from jupyter_mgpu.keeping.messages import describe_task, make_status
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.owner.pool_owner import Listener
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.shared_memory import Store, is_shared
from jupyter_mgpu.transport.controller import connect_client
from jupyter_mgpu.wire import Frame, Header

ANSWER_S = 30.0
STATUS_S = 2.0


def fixed_size(name: str, size: int) -> SelectionError:
    """Make the error of a request that would change a kept pool."""
    return SelectionError(
        f"Another size or other GPUs were asked for, but the kept pool {name!r} keeps its own: it "
        f"has {size} engines. `%parpool stop` ends it, or add --restart: its tasks and variables "
        "are lost then."
    )


class KeptOwner:
    """Hands requests to the keeper of one pool, and takes its events. Any thread may call.

    Args:
        name: The pool's name.
        folder: Its private folder.
        log: The keeper's; see `KeeperLink`.
        connection: Leads to the keeper.
        kernel: `kernel_id` and `notebook` of this kernel.
        say: Called with each sentence that the user should read while the pool starts.
        process: The keeper, where this kernel has started it.

    Attributes:
        store: Puts large data of the pool's messages into shared memory.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        log: BinaryIO,
        connection: socket.socket,
        kernel: Mapping[str, Any],
        say: Callable[[str], None],
        process: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.store = Store(folder, store_name(os.getpid()), keeps_recent=True)
        self._listener: Listener | None = None
        self._last_status: PoolStatus | None = None
        self._expects = False
        self._client: Any = None
        self._link = KeeperLink(
            name, log, connection, kernel, say, process, self.store, self._on_end
        )
        self._hosts = AskedHosts(lambda: self._link.ask("far_hosts"))

    def _on_end(self) -> None:
        self.store.close()
        if self._client is not None:
            self._client.close(linger=0)  # else its threads hold up the end of this process

    # --- life --------------------------------------------------------------------------

    def attach(self) -> Self:
        """Wait until the keeper has let this kernel in, and the pool is ready.

        Raises:
            AttachError: If it belongs to another kernel.
            MgpuError: What the start of the pool has failed with.
        """
        try:
            self._link.attached.result()
        except BaseException:  # also a Stop
            self._link.close()
            self._link.wait(ANSWER_S)
            raise
        self._last_status = make_status(self.snapshot["status"])
        return self

    @property
    def snapshot(self) -> dict[str, Any]:
        """What the keeper told when this kernel was attached."""
        return self._link.snapshot

    def hear(self, listener: Listener) -> Self:
        """Tell the events to a listener, once `start` was called."""

        def take(header: Header, frames: list[Frame]) -> None:
            if header["op"] == "engine_replaced":  # a scheduler may have chosen another place
                self._engines[header["rank"]]["device"] = header["device"]
            listener(header, frames)

        self._listener = take
        return self

    def start(self) -> Future[None]:
        """Tell the listener what has happened since this kernel was attached, and what will."""
        if self._listener is not None:
            self._link.start(self._listener)
        return self._link.attached

    def detach(self) -> None:
        """Let go of the pool, which goes on; harmless when that has happened."""
        self._link.close()

    def stop(self, *, reason: str = "stopped") -> None:
        """End the pool: busy engines at once. Returns before it has ended; see `wait`."""
        self._link.is_closing = True
        with contextlib.suppress(PoolClosedError):
            self._link.tell("stop", reason=reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the connection, and so of the pool; False when it took longer."""
        return self._link.wait(timeout)

    # --- requests ----------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Queue a task; harmless if it was before.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        if self._link.is_closing:
            raise self._link.closed_error()
        if task.info.setdefault("sent", False):
            return
        described, frames = describe_task(task)
        if not any(map(is_shared, frames)):
            self._link.hand_over("submit", frames, task=described)
            taken = None
        else:  # this kernel may die as soon as the keeper holds it
            taken = self._link.ask("submit", frames, task=described)
        task.info["sent"] = True
        task.frames = []
        if taken is not None:
            with contextlib.suppress(TimeoutError):
                taken.result(ANSWER_S)

    def resend(self, task_id: str, rank: int, frames: list[Frame]) -> None:
        """Send a running cell again to a rank that lacked some of the names' parts."""
        self._link.tell("resend", frames, task=task_id, rank=rank)

    def cancel(self, task_id: str) -> None:
        """Take a task out of the queue, or end it while it runs."""
        self._link.tell("cancel", task=task_id)

    def withdraw(self, task_ids: Sequence[str]) -> set[str]:
        """Take those tasks that still wait out of the queue; return their ids.

        Raises:
            PoolClosedError: If the pool has ended.
        """
        try:
            return set(self._link.ask("withdraw", tasks=list(task_ids)).result(ANSWER_S))
        except (TimeoutError, CancelledError):
            raise self._link.closed_error() from None

    def interrupt(self, task_id: str, *, force: bool = False) -> None:
        """Interrupt a running task; with `force`, replace the engines that still run it."""
        self._link.tell("interrupt", task=task_id, force=force)

    def request_stop(self, task_id: str, after: StopAfter = "step") -> None:
        """Ask a task to end by itself, after its step or its epoch."""
        self._link.tell("request_stop", task=task_id, after=after)

    def expect_collectives(self) -> None:
        """Make the first process group quick; harmless when the pool has ended."""
        if not self._expects:
            self._expects = True
            with contextlib.suppress(PoolClosedError):
                self._link.tell("expect_collectives")

    def restart(self, ranks: Sequence[int] = ()) -> None:
        """Replace the engines of some ranks (all by default)."""
        self._link.tell("restart", ranks=list(ranks))

    def flush_journal(self) -> None:
        """Have the records of ended tasks on disk; harmless when the pool has ended."""
        with contextlib.suppress(PoolClosedError, TimeoutError, CancelledError):
            self._link.ask("flush_journal").result(ANSWER_S)

    def set_idle_timeout(self, timeout_s: float | None) -> Future[None]:
        """Let the pool end after another time without use; None for never."""
        return self._link.ask("set_idle_timeout", timeout_s=timeout_s)

    def grow(
        self,
        plans: Sequence[EnginePlan],  # noqa: ARG002 - as other owners
        on_turn: Callable[[], None] = lambda: None,  # noqa: ARG002
    ) -> Future[None]:
        """Refuse: a kept pool keeps its size."""
        raise fixed_size(self.name, len(self.ranks))

    def shrink(self, size: int) -> Future[None]:  # noqa: ARG002 - as other owners
        """Refuse: a kept pool keeps its size."""
        raise fixed_size(self.name, len(self.ranks))

    def rpc(self, rank: int, name: str, /, **args: Any) -> Future[Any]:
        """Ask an engine something on its control channel, also while it is busy."""
        return self._link.ask("rpc", rank=rank, name=name, args=args)

    def post(self, rank: int, header: Header, frames: Sequence[Frame] = ()) -> None:
        """Send an engine's main thread a message without an answer, before the next task."""
        self._link.tell("post", frames, rank=rank, header=header)

    def post_to_all(self, header: Header) -> None:
        """Send the main thread of every engine a message; harmless when the pool has ended."""
        with contextlib.suppress(PoolClosedError):
            self._link.tell("post_to_all", header=header)

    def answer(self, engine: str, header: Header, frames: Sequence[Frame]) -> None:
        """Answer what an engine has asked its kernel; harmless when the pool has ended."""
        with contextlib.suppress(PoolClosedError):
            self._link.tell("answer", frames, engine=engine, header=header)

    def client(self) -> Any:
        """Connect ipyparallel's own client; starts its controller at the first call."""
        if self._client is None:
            folder, number = self._link.ask("controller").result(ANSWER_S)
            self._client = connect_client(Path(folder), number)
        return self._client

    # --- what it is --------------------------------------------------------------------

    def status(self) -> PoolStatus:
        """Return what people see of the pool; the last that is known where that does not answer."""
        with contextlib.suppress(PoolClosedError, TimeoutError, CancelledError):
            self._last_status = make_status(self._link.ask("status").result(STATUS_S))
        if self._last_status is None:
            raise self._link.closed_error()
        return self._last_status

    def far_hosts(self) -> list[dict[str, Any]]:
        """Return what is known of other hosts, and have them read on; never waits."""
        engines = self._last_status.engines if self._last_status is not None else ()
        names = sorted({engine.host for engine in engines if engine.host})
        return self._hosts.look(names) if names else []

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
