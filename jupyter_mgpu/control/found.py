"""The pools of this user, as their records tell."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.owner import records


class NoSuchPoolError(MgpuError):
    """No pool of this user has the name or id that was asked for, or several have the name."""


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """The process of one rank; start_time tells it from a later one of the same number."""

    rank: int
    pid: int
    start_time: str
    device: str


@dataclass(frozen=True, slots=True)
class FoundPool:
    """A pool of this user, in this or another process.

    Attributes:
        id: Unique on this host; the name is unique in its kernel only.
        started: When, as ISO 8601 text.
        is_orphaned: Its kernel, or keeper, has died, and engines of it are left.
        kernel_pid: The process of its owner: the kernel, or a kept pool's keeper.
        is_kept: It outlives its kernel.
        attached_pid: The kernel that a kept pool is attached to, if any.
    """

    id: str
    name: str
    kernel_pid: int
    socket: Path
    kernel_id: str | None
    notebook: str | None
    started: str | None
    engines: tuple[FoundEngine, ...]
    is_orphaned: bool
    is_kept: bool = False
    attached_pid: int | None = None

    @property
    def owner_word(self) -> str:
        """What its owner runs in."""
        return "keeper" if self.is_kept else "kernel"

    @property
    def is_without_kernel(self) -> bool:
        """Whether it is a kept pool that no kernel is attached to."""
        return self.is_kept and self.attached_pid is None

    @property
    def record_path(self) -> Path:
        """The file that lets it be found."""
        return records.folder() / f"{self.id}.json"

    @property
    def folder(self) -> Path:
        """Its private folder, with the ranks' logs."""
        return self.socket.parent


def find_pools() -> list[FoundPool]:
    """Return every pool of this user on this host, oldest first."""
    found = [pool for record in records.read_all() if (pool := _from_record(record)) is not None]
    return sorted(found, key=lambda pool: (pool.started or "", pool.id))


def find_pool(pool_id: str) -> FoundPool:
    """Return the pool of an id.

    Raises:
        NoSuchPoolError: If there is none.
    """
    for pool in find_pools():
        if pool.id == pool_id:
            return pool
    raise NoSuchPoolError(f"There is no pool {_short(pool_id)}: it may have ended.")


def named(word: str, pools: Iterable[FoundPool] | None = None) -> FoundPool:
    """Return the pool that a person names, by its name or its id.

    Args:
        word: What was typed.
        pools: Where to look; all by default.

    Raises:
        NoSuchPoolError: If there is none, or more than one of that name.
    """
    pools = find_pools() if pools is None else list(pools)
    found = [pool for pool in pools if word == pool.id] or [p for p in pools if word == p.name]
    if len(found) == 1:
        return found[0]
    if not found:
        listed = ", ".join(repr(pool.name) for pool in pools) or "none"
        raise NoSuchPoolError(f"There is no pool {_short(word)}. The pools are: {listed}.")
    listed = "; ".join(f"{pool.id} ({pool.notebook or 'no notebook'})" for pool in found)
    raise NoSuchPoolError(
        f"{len(found)} pools have the name {_short(word)}. Name one by its id: {listed}."
    )


def _short(word: str) -> str:
    return repr(word if len(word) <= 80 else f"{word[:77]}...")


def _from_record(record: dict[str, Any]) -> FoundPool | None:
    """Take what a record tells; None if it was not written by a pool."""
    try:
        return FoundPool(
            id=record["id"],
            name=str(record["name"]),
            kernel_pid=int(record["pid"]),
            socket=Path(record["socket"]),
            kernel_id=_text(record["kernel_id"]),
            notebook=_text(record["notebook"]),
            started=_text(record["started"]),
            engines=tuple(map(_engine, record["engines"])),
            is_orphaned=record["is_orphaned"],
            is_kept=bool(record.get("is_kept")),
            attached_pid=record.get("attached_pid"),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _engine(record: dict[str, Any]) -> FoundEngine:
    return FoundEngine(
        rank=int(record["rank"]),
        pid=int(record["pid"]),
        start_time=str(record["start_time"]),
        device=str(record["device"]),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
