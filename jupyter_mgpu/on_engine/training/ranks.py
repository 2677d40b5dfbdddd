"""The ranks that train together, how much each computes, and sums over them."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.on_engine.training.backends import uses_only


@dataclass(slots=True)
class Clock:
    """Adds up time."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process's view of those that train together.

    Attributes:
        rank: This one's number among those that train.
        loads: How much of each batch every rank takes; they add up to 1.
        device: Where this one computes.
        group: torch's process group of those that train; the default one if None.
        waited: How long this rank has waited in sums and gathers.
    """

    rank: int
    loads: tuple[float, ...]
    device: str
    group: Any = None
    waited: Clock = field(default_factory=Clock)

    @property
    def world_size(self) -> int:
        """How many train."""
        return len(self.loads)

    @property
    def is_alone(self) -> bool:
        """Whether nothing has to be exchanged."""
        return self.world_size == 1

    @property
    def is_first(self) -> bool:
        """Whether this rank tells, writes and decides what one rank must."""
        return self.rank == 0

    def sum(self, values: Any) -> Any:
        """Add up a tensor over the ranks, in place."""
        if not self.is_alone:
            import torch.distributed as dist

            begun_s = time.perf_counter()
            dist.all_reduce(values, group=self.group)
            self.waited.seconds += time.perf_counter() - begun_s
        return values

    def gather(self, value: Any) -> list[Any]:
        """Collect one object per rank, on every rank."""
        if self.is_alone:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def collect(self, value: Any) -> list[Any]:
        """Collect one object per rank on the first one; the others get an empty list."""
        if self.is_alone:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.world_size if self.is_first else []
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.gather_object(value, found or None, dst=first, group=self.group)
        return found


@contextlib.contextmanager
def group_of(
    workers: tuple[int, ...], world_size: int, backend: str | None = None
) -> Iterator[Any]:
    """Make the process group of those that work; all ranks of the pool must call it.

    Args:
        workers: Their ranks in the pool.
        world_size: How many ranks the pool has.
        backend: By what they exchange; nccl on GPUs and gloo on CPUs by default.

    Yields:
        The group; None for the default one, or for none where one works alone.
    """
    if len(workers) == 1:
        yield None
        return
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group()
    is_right = backend is None or uses_only(backend, dist.get_backend_config())
    if len(workers) == world_size and is_right:
        yield None
        return
    group = dist.new_group(list(workers), backend=backend)
    yield group  # after an error the engine ends all groups
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(group)


def split(num_rows: int, loads: Sequence[float]) -> list[int]:
    """Cut a batch by loads: the bounds of the ranks' parts, by largest remainder."""
    total = sum(loads)
    exact = [num_rows * load / total for load in loads]
    counts = [int(part) for part in exact]
    by_rest = sorted(range(len(loads)), key=lambda r: (counts[r] - exact[r], r))
    for rank in by_rest[: num_rows - sum(counts)]:
        counts[rank] += 1
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return bounds
