"""What a pool and its engines are started with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from jupyter_mgpu import cuda
from jupyter_mgpu.clusters import ClusterDescription
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.rendezvous import Rendezvous
from jupyter_mgpu.transport.placement import Placement


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What one rank's engine is started with.

    Attributes:
        rank: Its place in the pool.
        device: What it runs on, in words.
        torch_device: What its `device` variable says: `cuda:0` or `cpu`.
        environment: Its pin and rendezvous variables.
        gpu_uuids: Its own GPUs.
        prove: Asks CUDA itself whether the pin is right: an answer, and the error if it is
            wrong. None for a CPU engine.
        placement: Where it runs, if not on this machine.
        judge: Says what the answer of CUDA there proves, in place of `prove`.
        place: Its place among the pool's hosts; None where there is one.
    """

    rank: int
    device: str
    torch_device: str
    environment: dict[str, str]
    gpu_uuids: tuple[str, ...] = ()
    prove: Callable[[], tuple[bool, str | None]] | None = None
    placement: Placement | None = None
    judge: Callable[[cuda.Answer], tuple[bool, str | None]] | None = None
    place: HostPlace | None = None


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What a pool is started with.

    Attributes:
        name: Unique among this kernel's pools.
        engines: One plan per rank, in rank order.
        folder: The pool's private folder (0700); removed at the end.
        rendezvous: Where the ranks meet for collectives.
        kernel_id: The Jupyter kernel, if there is one; of a kept pool the one that is attached.
        is_kept: Whether it outlives its kernel.
        attached_pid: The kernel that a kept pool is attached to, if any.
        notebook: Its notebook, if known.
        idle_timeout_s: After how long an unused pool ends; None for never.
        visible: Whether an engine sees its own GPUs or all of the pool.
        shares_gpu: Several engines share a GPU.
        start_timeout_s: How long an engine may take to start.
        cluster: Where its engines run; None for this machine.
    """

    name: str
    engines: tuple[EnginePlan, ...]
    folder: Path
    rendezvous: Rendezvous
    kernel_id: str | None = None
    is_kept: bool = False
    attached_pid: int | None = None
    notebook: str | None = None
    idle_timeout_s: float | None = None
    visible: Literal["own", "pool"] = "own"
    shares_gpu: bool = False
    start_timeout_s: float = 60.0
    cluster: ClusterDescription | None = None
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
