"""What the kernel's side asks of the owner of a pool, wherever that runs."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from jupyter_mgpu.engines import PoolStatus
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.shared_memory import Store
from jupyter_mgpu.wire import Frame, Header

Listener = Callable[[Header, list[Frame]], None]
"""Called in the owner's thread with each event; must return at once."""


class PoolOwner(Protocol):
    """The owner of one pool, in a thread of this kernel or in a process of its own.

    Any thread may call. Requests to a pool that has ended raise PoolClosedError, unless it says
    that they are harmless then.
    """

    @property
    def name(self) -> str:
        """The pool's name."""

    @property
    def store(self) -> Store:
        """Puts large data of the pool's messages into shared memory."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have an engine, or get one again."""

    @property
    def gpu_uuids(self) -> dict[int, tuple[str, ...]]:
        """The GPUs of each rank that has any."""

    @property
    def record_path(self) -> Path:
        """The pool's record in the runtime folder."""

    def device(self, rank: int) -> str:
        """Return what a rank runs on, in words."""

    def log(self, rank: int) -> Path:
        """Return the file with all that a rank has printed."""

    def status(self) -> PoolStatus:
        """Return what people see of the pool; the last that is known when it has ended."""

    def far_hosts(self) -> list[dict[str, Any]]:
        """Return what is known of other hosts, and have them read on; never waits."""

    def start(self) -> Future[None]:
        """Start the pool; the future is done when every engine has said hello."""

    def stop(self, *, reason: str = "stopped") -> None:
        """End the pool: busy engines at once. Returns before it has ended; see `wait`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the owner; False when it took longer."""

    def submit(self, task: Task) -> None:
        """Queue a task; harmless if it was before."""

    def resend(self, task_id: str, rank: int, frames: list[Frame]) -> None:
        """Send a running cell again to a rank that lacked some of the names' parts."""

    def cancel(self, task_id: str) -> None:
        """Take a task out of the queue, or end it while it runs."""

    def withdraw(self, task_ids: Sequence[str]) -> set[str]:
        """Take those tasks that still wait out of the queue; return their ids."""

    def interrupt(self, task_id: str, *, force: bool = False) -> None:
        """Interrupt a running task; with `force`, replace the engines that still run it."""

    def request_stop(self, task_id: str, after: StopAfter = "step") -> None:
        """Ask a task to end by itself, after its step or its epoch."""

    def expect_collectives(self) -> None:
        """Make the first process group quick; harmless when the pool has ended."""

    def restart(self, ranks: Sequence[int] = ()) -> None:
        """Replace the engines of some ranks (all by default)."""

    def flush_journal(self) -> None:
        """Have the records of ended tasks on disk; harmless when the pool has ended."""

    def set_idle_timeout(self, timeout_s: float | None) -> Future[None]:
        """Let the pool end after another time without use; None for never."""

    def grow(
        self, plans: Sequence[EnginePlan], on_turn: Callable[[], None] = lambda: None
    ) -> Future[None]:
        """Add engines, after a call in its thread; the future is done when they are ready."""

    def shrink(self, size: int) -> Future[None]:
        """End the engines of the last ranks; they must be idle."""

    def rpc(self, rank: int, name: str, /, **args: Any) -> Future[Any]:
        """Ask an engine something on its control channel, also while it is busy."""

    def post(self, rank: int, header: Header, frames: Sequence[Frame] = ()) -> None:
        """Send an engine's main thread a message without an answer, before the next task."""

    def post_to_all(self, header: Header) -> None:
        """Send the main thread of every engine a message; harmless when the pool has ended."""

    def answer(self, engine: str, header: Header, frames: Sequence[Frame]) -> None:
        """Answer what an engine has asked its kernel; harmless when the pool has ended."""

    def client(self) -> Any:
        """Connect ipyparallel's own client; starts its controller at the first call."""
