"""Which place an engine has on a host that a scheduler has chosen for it.

A launcher counts the engines of one set. Those that join a pool later, or replace one that has
died, are sets of their own, so that only the owner sees who else is on their host.
"""

import itertools
from collections.abc import Iterable

from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.transport.far_process import FarProcess


def settle(engine: EngineRecord, others: Iterable[EngineRecord]) -> int | None:
    """Give an engine that has just started a place of its own among those of its host.

    Args:
        engine: The engine.
        others: The pool's other engines.

    Returns:
        Its place, if it must be told, since its launcher has counted otherwise.
    """
    process = engine.process
    if engine.plan.place is not None or not isinstance(process, FarProcess):
        return None
    taken = {other.local_rank for other in others if other.host == engine.host}
    told = process.local_rank
    free = (place for place in itertools.count() if place not in taken)
    engine.local_rank = told if told not in taken else next(free)
    return None if engine.local_rank == told else engine.local_rank
