"""One sample of a GPU, of the host, of an engine: frozen records with units.

None means unknown, never zero; `reasons` then says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

GpuState = Literal["ok", "stale", "lost", "divided", "unusable"]
HostState = Literal["ok", "unread", "stale", "lost"]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A process on a GPU, or an engine's hold on it.

    Attributes:
        words: Who it is, as messages say it.
        pid: None for memory that is used while the driver names no process.
        user: The name of the operating system's user.
        pool: The pool that holds the GPU for it.
    """

    words: str
    pid: int | None
    user: str | None = None
    pool: str | None = None
    rank: int | None = None
    memory_used_bytes: int | None = None
    is_this_notebook: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU or MIG instance.

    Attributes:
        label: `GPU 0`, or `GPU 0 MIG 1` for an instance.
        index: NVML's number; None for an instance.
        state: "ok"; "stale" if the driver, or its host, does not answer; "lost" if it fell off the
            bus or its host is lost, with its last values; "divided" into MIG instances; "unusable",
            as without permission.
        age_s: Seconds since it answered last; None if it never did.
        utilization_percent: Share of the time in which at least one kernel ran. It does not say
            how much of the GPU these kernels used.
        memory_reserved_bytes: What the driver keeps for itself.
        is_memory_shared: It has no memory of its own: the total is the host's, the used part that
            of the listed processes.
        throttle: Why it runs slower than it could, in words; empty if it does not.
        users: None where processes cannot be listed and no engine holds it.
        reasons: For each value that is None, why.
        host: The other host that it is in; None for this machine.
    """

    label: str
    index: int | None
    uuid: str | None
    name: str | None
    state: GpuState
    age_s: float | None = None
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    is_memory_shared: bool = False
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    throttle: tuple[str, ...] | None = None
    users: tuple[GpuUse, ...] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    host: str | None = None
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class HostSample:
    """One machine, or the container's share of it.

    Attributes:
        cpu_percent: Share of all cores that was busy since the reading before, 0 to 100.
        memory_used_bytes: What cannot be had any more, without what is only cached.
        name: Of another host; None for this machine.
        state: "ok"; "unread" before its first reading; "stale" if it does not report any more;
            "lost" if no engine runs there that could. This machine is always "ok".
        age_s: Seconds since another host's reading came, by the clock of this machine.
        trouble: Why another host has no GPU or no reading, or why its values are old.
    """

    cpu_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    state: HostState = "ok"
    age_s: float | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """The process of an engine that is to be watched."""

    pid: int
    pool: str
    rank: int


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The process of one engine.

    Attributes:
        started: When the process started, epoch seconds; a pid alone may be somebody else's later.
        cpu_percent: Share of one core since the reading before; 200 is two cores.
        rss_bytes: Its resident memory, pages shared with other processes included.
        host: The other host that it runs on, where its pid counts; None for this machine.
    """

    pid: int
    pool: str
    rank: int
    started: float | None = None
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    host: str | None = None
