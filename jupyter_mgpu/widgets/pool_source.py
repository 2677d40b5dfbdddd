"""A pool as the source of views, and what their buttons do with it."""

import threading
import weakref
from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.widgets.engine_readings import readings_of
from jupyter_mgpu.widgets.future_source import id_of_pool
from jupyter_mgpu.widgets.sources import shared
from jupyter_mgpu.widgets.states import State
from jupyter_mgpu.widgets.states.pool import EngineReadings, pool_state
from jupyter_mgpu.widgets.telemetry import telemetry


class PoolSource:
    """What views show of one pool; it does not keep the pool.

    Args:
        pool: The pool.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = weakref.ref(pool)
        self._readings: dict[int, EngineReadings] = {}
        self._last = self._state_of(pool)

    def state(self, limit: int) -> State:  # noqa: ARG002 - it has no curves
        """Make the pool's state; the last one for a pool that is gone."""
        pool = self._pool()
        if pool is not None:
            self._last = self._state_of(pool)
        return self._last

    def has_ended(self) -> bool:
        """Whether the pool has ended."""
        pool = self._pool()
        return pool is None or not pool.is_open

    def _state_of(self, pool: Pool) -> State:
        status = pool.status()
        uuids = _uuids(pool)
        if pool.is_open:  # else the last ones stay
            self._readings = readings_of(status.engines, uuids, telemetry.watch())
        return pool_state(
            status,
            self._readings,
            uuids=uuids,
            task_ids={e.rank: e.task_id for e in status.engines if e.task_id is not None},
            ended=pool.end_reason,
            place={"pool": id_of_pool(pool)},
        )

    def act(self, action: dict[str, Any]) -> str:
        """Interrupt, restart or stop; see `Source.act`."""
        pool = self._pool()
        if pool is None or not pool.is_open:
            raise MgpuError("The pool has ended.")
        return act_on_pool(pool, action)


def _uuids(pool: Pool) -> dict[int, str]:
    return {rank: uuids[0] for rank, uuids in pool.gpu_uuids.items()}


def pool_source(pool: Pool) -> PoolSource:
    """Return the source of a pool's views."""
    return shared(("pool", id(pool)), lambda: PoolSource(pool))


def act_on_pool(pool: Pool, action: dict[str, Any]) -> str:
    """Do what a button of a pool's view asks for; returns at once.

    Raises:
        MgpuError: If there is nothing to do, or no such rank.
    """
    rank = action.get("rank")
    if rank is not None and rank not in pool.ranks:
        raise MgpuError(f"Rank {rank} was asked for, but the pool has ranks {list(pool.ranks)}.")
    ranks = pool.ranks if rank is None else (rank,)
    where = "all ranks" if rank is None else f"rank {rank}"
    if action["action"] == "interrupt":
        return _interrupt(pool, ranks)
    if action["action"] == "restart":
        pool.restart(ranks)
        return f"New engines start on {where} of the pool '{pool.name}'."
    if action["action"] == "stop":
        # It waits for the engines' end, and the page for its answer.
        end = threading.Thread(
            target=pool.shutdown, kwargs={"wait_for_tasks": False}, name="mgpu-stop", daemon=True
        )
        end.start()
        return f"The pool '{pool.name}' stops."
    raise MgpuError(f"{action['action']!r} was asked for, which a pool does not know.")


def _interrupt(pool: Pool, ranks: tuple[int, ...]) -> str:
    tasks = {e.task_id: e.task or "" for e in pool.engines if e.rank in ranks and e.task_id}
    if not tasks:
        raise MgpuError("Nothing runs there that could be interrupted.")
    for task_id in tasks:
        pool.owner.interrupt(task_id)
    return f"Interrupted: {', '.join(tasks.values())}."
