"""The owner's record of one rank: its process, its state, and what it works on."""

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_mgpu.engines import EngineState, EngineStatus, MovedBytes, Rank
from jupyter_mgpu.on_engine import guard
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.transport.processes import EngineProcess

MAX_FAILED_STARTS = 3
"""So many in a row, and a rank gets no engine before it is restarted on request."""
STDERR_LINES = 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine's process ended.

    Attributes:
        message: What to tell of it.
        exit_code: Negative for a signal; None where unknown.
        is_replaced: The owner ended it itself: that is no cause of another rank's failure.
    """

    message: str
    exit_code: int | None
    is_replaced: bool


@dataclass(slots=True, eq=False)
class EngineRecord:
    """One rank, over all the processes that were started for it."""

    plan: EnginePlan
    log: Path
    state: EngineState = EngineState.STARTING
    process: EngineProcess | None = None
    starts: int = 0
    first_number: int = 0  # above 0 where the pool had such a rank before, and gave it up
    local_rank: int | None = None  # its place on a host that a scheduler has chosen
    failed_starts: int = 0
    task: Task | None = None
    proven: bool | None = None
    is_importing: bool = False  # by its last word its task is in an import that must not break
    rss_bytes: int | None = None
    log_start: int = 0  # where the lines of the present process begin
    doom: str | None = None  # why the owner itself ended the process
    lost: str = ""  # why it was not started again, in one line
    sent_bytes: int = 0
    received_bytes: int = 0
    shared_bytes: int = 0  # of both, in shared memory
    hello: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def rank(self) -> int:
        """Its place in the pool."""
        return self.plan.rank

    @property
    def is_far(self) -> bool:
        """Whether it runs on another host."""
        return self.plan.placement is not None

    @property
    def host(self) -> str | None:
        """The name of the other host that it runs on, None for this machine."""
        if self.plan.placement is None:
            return None
        return (self.process and self.process.host) or self.plan.placement.host

    @property
    def place(self) -> str:
        """What it runs on, in words: `GPU 3 (NVIDIA H200)`, `CPU on hostb`."""
        return self.plan.device if self.host is None else f"{self.plan.device} on {self.host}"

    @property
    def number(self) -> int:
        """What tells the process that runs now from all others that its rank ever had."""
        return self.first_number + self.starts

    @property
    def name(self) -> str:
        """The name of the process that runs now, as its connections call it."""
        return f"{self.rank}.{self.number}"

    @property
    def is_alive(self) -> bool:
        """Whether its process runs and has said hello."""
        return self.hello.is_set() and self.state is not EngineState.DEAD

    @property
    def is_given_up(self) -> bool:
        """Whether it could not be started again."""
        return self.state is EngineState.DEAD and self.failed_starts >= MAX_FAILED_STARTS

    def record(self) -> dict[str, Any]:
        """Describe its process for the pool's record; there must be one."""
        pid = (self.process and self.process.pid) or 0
        try:
            started = guard.start_time(pid)
        except ProcessLookupError:
            started = "0"
        return {"rank": self.rank, "pid": pid, "start_time": started, "device": self.plan.device}

    def take(self, task: Task) -> None:
        """Begin to work on a task."""
        self.task = task
        self.is_importing = False
        self.state = EngineState.BUSY
        self.free.clear()

    def release(self) -> None:
        """Be idle again."""
        self.task = None
        if self.state in (EngineState.BUSY, EngineState.STOPPING):
            # Its last reply may come after the signal that ends it: it gets no further task.
            self.state = EngineState.IDLE if self.doom is None else EngineState.STOPPING
        self.free.set()

    def status(self) -> EngineStatus:
        """Return what people see of it."""
        return EngineStatus(
            rank=Rank(self.rank),
            pid=self.process.pid if self.process else None,
            device=self.plan.device,
            host=self.host,
            state=self.state,
            task=self.task.name if self.task else None,
            proven=self.proven,
            rss_bytes=self.rss_bytes,
            starts=self.starts,
            moved=MovedBytes(self.sent_bytes, self.received_bytes, self.shared_bytes),
            task_id=self.task.id if self.task else None,
        )

    def sample_memory(self) -> None:
        """Remember the process's memory, to be told when it dies."""
        if self.process is None:
            return
        if self.is_far:
            self.rss_bytes = self.process.rss_bytes or self.rss_bytes
            return
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return
        if pages:
            self.rss_bytes = pages * PAGE_BYTES

    def last_words(self, launcher_log: Path) -> str:
        """Return the last lines that this process wrote, wherever they went."""
        text = self.process.last_words if self.process is not None else ""
        for path, start in ((launcher_log, 0), (self.log, self.log_start)):
            with contextlib.suppress(OSError):
                text += read_tail(path, 8192, start)
        lines = [line for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-STDERR_LINES:])


def read_tail(path: Path, size: int, start: int = 0) -> str:
    """Read the end of a file, but nothing before a place in it."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - size))
        return file.read().decode(errors="replace")


def describe_exit(code: int | None) -> str:
    """Say how a process ended: `killed by SIGSEGV`, `exited with code 3`."""
    if code is None:
        return "ended for an unknown reason"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        name += " (by a user, or by the kernel when memory ran out)"
    return f"was killed by {name}"


def oom_kills() -> int | None:
    """Read how often the kernel ended a process of this cgroup for lack of memory.

    Source:
        cgroup v2, memory.events, field oom_kill.
    """
    try:
        lines = Path("/sys/fs/cgroup/memory.events").read_text().splitlines()
    except OSError:
        return None
    counts: dict[str, Any] = dict(line.split() for line in lines if line)
    return int(counts["oom_kill"]) if "oom_kill" in counts else None
