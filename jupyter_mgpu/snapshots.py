"""One sample of everything on this machine, with the engines of the open pools."""

from jupyter_mgpu.monitor import EngineProcess, Snapshot, take_snapshot
from jupyter_mgpu.pools import open_pools


def snapshot() -> Snapshot:
    """Take one sample of GPUs, host, and the engines of this notebook's pools.

    Takes a fifth of a second, a few seconds where the driver hangs. Creates no CUDA context and
    raises nothing because of a GPU: what is unknown is None, and `reasons` says why.

    Returns:
        A record with `host`, `gpus` and `engines`; `to_pandas()`, `to_csv()`, `to_json()` and
        `to_dict()` turn it into something else.

    Example:
        >>> snapshot().to_pandas()
    """
    return take_snapshot(engine_processes())


def engine_processes() -> list[EngineProcess]:
    """List the engines of the open pools that have a process."""
    return [
        EngineProcess(engine.pid, pool.name, int(engine.rank))
        for pool in open_pools()
        for engine in pool.engines
        if engine.pid is not None
    ]
