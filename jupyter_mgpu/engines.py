"""What is known of a pool and its engines: frozen records that every surface shows."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NewType

Rank = NewType("Rank", int)
"""Position in the pool, 0 to world_size - 1. Not a GPU index."""


class EngineState(StrEnum):
    """Where an engine is in its life."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPING = "stopping"
    DEAD = "dead"


class TaskState(StrEnum):
    """Where a task is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class HostPlace:
    """An engine's place among the pool's hosts.

    Attributes:
        local_rank: Its place among the pool's engines on its host.
        local_size: How many those are.
        group: The host's place among the pool's hosts.
        num_groups: How many those are.
    """

    local_rank: int
    local_size: int
    group: int = 0
    num_groups: int = 1


@dataclass(frozen=True, slots=True)
class MovedBytes:
    """How much data went between the kernel and one rank.

    Attributes:
        sent: To the rank, in bytes.
        received: From the rank, in bytes.
        shared: How much of both was in shared memory, which is not copied for the receiver.
    """

    sent: int = 0
    received: int = 0
    shared: int = 0

    def __sub__(self, before: "MovedBytes") -> "MovedBytes":
        return MovedBytes(
            self.sent - before.sent, self.received - before.received, self.shared - before.shared
        )


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine, now.

    Attributes:
        rank: Its place in the pool.
        pid: Its process, None while it starts.
        device: What it runs on, in words: `GPU 3 (NVIDIA H200)` or `CPU`.
        state: Idle, busy and so on.
        task: The name of what it runs, if anything.
        proven: Whether CUDA itself confirmed the device; None for CPU engines.
        rss_bytes: Its memory at the last look, None before the first.
        starts: How often an engine was started for this rank.
        moved: What went to it and came from it since the pool was started.
        task_id: The id of what it runs.
        host: The other host that it runs on, where its pid counts; None for this machine.
    """

    rank: Rank
    pid: int | None
    device: str
    state: EngineState
    task: str | None
    proven: bool | None
    rss_bytes: int | None
    starts: int
    moved: MovedBytes
    task_id: str | None = None
    host: str | None = None

    @property
    def place(self) -> str:
        """What it runs on, and where, in words: `CPU on hostb`."""
        return self.device if self.host is None else f"{self.device} on {self.host}"


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """One pool, now: what the magic prints, a view draws and the server sends.

    Attributes:
        kernel_pid: The process of its owner: the kernel, or a kept pool's keeper.
        is_kept: Whether it outlives its kernel.
        attached_pid: The kernel that a kept pool is attached to, if any.
        notes: What is to be known of where its engines run, such as a job's time limit.
    """

    name: str
    kernel_pid: int
    kernel_id: str | None
    notebook: str | None
    started: str
    generation: int
    idle_timeout_s: float | None
    engines: tuple[EngineStatus, ...]
    queued: int
    running: int
    is_kept: bool = False
    attached_pid: int | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the status as plain JSON values."""
        return asdict(self)
