"""Which ranks of which pool train a network, and how much each computes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.start import pool_named


@dataclass(frozen=True, slots=True)
class PoolPlace:
    """Ranks of a pool.

    Attributes:
        pool: The pool.
        trainers: The ranks that train.
        loads: How much of each batch every one of them takes; empty if that is to be measured.
    """

    pool: Pool
    trainers: tuple[int, ...]
    loads: tuple[float, ...]

    @property
    def words(self) -> str:
        """What it is, to be shown."""
        devices = [self.pool.device(rank) for rank in self.trainers]
        if len(devices) == 1:
            return f"rank {self.trainers[0]} of the pool {self.pool.name!r} ({devices[0]})"
        kind = "CPU engines" if devices[0] == "CPU" else "GPUs"
        return f"{len(devices)} {kind} of the pool {self.pool.name!r}"


def demand_net(net: Any) -> None:
    """Refuse what is no network.

    Raises:
        TypeError: It says what it is.
    """
    if not hasattr(net, "state_dict") or not callable(net):
        raise TypeError(f"A torch.nn.Module was expected, but net is a {type(net).__name__}.")


def is_here(options: TrainingOptions) -> bool:
    """Tell whether the options ask for this very process.

    Raises:
        MgpuError: If they ask for a pool, and this is an engine of one.
        TypeError: If they are no options.
    """
    if not isinstance(options, TrainingOptions):
        raise TypeError(
            f"TrainingOptions were expected, but options is a {type(options).__name__}. Write "
            "TrainingOptions(max_epochs=10)."
        )
    environment = options.execution_environment
    if environment in ("auto", "cpu", "gpu"):
        return True
    if context.current() is not None:
        raise MgpuError(
            f"execution_environment is {environment!r}, but this runs on an engine, which has no "
            "pool of its own. Use 'gpu' or 'auto' there."
        )
    return False


def choose_ranks(pool: Pool | None, options: TrainingOptions) -> PoolPlace:
    """Choose the ranks that train: those with a GPU of their own, else all.

    Args:
        pool: The pool; the current one by default, started if there is none.
        options: With the load of each worker.

    Raises:
        ValueError: If the loads do not fit the pool.
    """
    pool = pool or pool_named(None)
    able = _with_own_gpu(pool) or pool.ranks
    load = options.worker_load
    if load is None or load == "auto":
        equal = tuple(1 / len(able) for _ in able)
        return PoolPlace(pool, able, () if load == "auto" else equal)
    weights = _weights(load, len(pool.ranks) if _is_vector(load) else len(able))
    by_rank = dict(zip(pool.ranks if _is_vector(load) else able, weights, strict=True))
    used = {rank: by_rank[rank] for rank in able if by_rank.get(rank)}
    total = sum(used.values())
    if not total:
        raise ValueError(
            f"worker_load is {load!r}, but then none of the ranks {list(able)} computes."
        )
    return PoolPlace(pool, tuple(used), tuple(weight / total for weight in used.values()))


def _with_own_gpu(pool: Pool) -> tuple[int, ...]:
    taken: set[str] = set()
    found = []
    for rank in pool.ranks:
        gpus = set(pool.gpu_uuids.get(rank, ()))
        if gpus and taken.isdisjoint(gpus):
            taken |= gpus
            found.append(rank)
    return tuple(found)


def _is_vector(load: object) -> bool:
    return isinstance(load, Sequence) and not isinstance(load, str)


def _weights(load: object, size: int) -> list[float]:
    """Turn a fraction, a number or a vector into a weight per rank.

    Raises:
        ValueError: If it is none of these, or does not fit.
    """
    if isinstance(load, Sequence) and not isinstance(load, str):
        if len(load) != size or any(weight < 0 for weight in load):
            raise ValueError(
                f"worker_load is {list(load)}, but it needs one weight of 0 or more for each of "
                f"the {size} ranks."
            )
        return [float(weight) for weight in load]
    if isinstance(load, bool) or not isinstance(load, int | float) or load <= 0:
        raise ValueError(
            f"worker_load is {load!r}, but it may be a fraction below 1, a number of ranks, one "
            "weight per rank, or 'auto'."
        )
    count = math.ceil(load * size) if load < 1 else load
    if count != int(count) or count > size:
        raise ValueError(f"worker_load is {load!r}, but {size} ranks can train.")
    return [1.0] * int(count) + [0.0] * (size - int(count))
