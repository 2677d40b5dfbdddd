"""An array of 400 MB to two engines and back, beside four other projects, and what it costs."""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import measure
import numpy as np
import peers

NUM_ENGINES = 2
NUM_NUMBERS = 50_000_000
NUM_BYTES = NUM_NUMBERS * 8
KEPT_S = 3
"""After so long the kernel keeps no block of the round before."""


def total(array: Any) -> float:
    """Read all of it."""
    return float(array.sum())


def make() -> Any:
    import numpy  # here, since ipyparallel does not bring a module's names along

    return numpy.ones(50_000_000)


def to_engines_s(run: Callable[[Any], list[float]]) -> float:
    """Return the median time until all engines have read an array that is new each time."""
    times = []
    generator = np.random.default_rng(0)
    for repeat in range(measure.REPEATS + 1):
        array = generator.random(NUM_NUMBERS)
        sums: list[list[float]] = []
        times.append(measure.seconds(lambda array=array, sums=sums: sums.append(run(array))))
        if not all(np.isclose(value, array.sum()) for value in sums[0]):
            raise ValueError(f"round {repeat}: {sums[0]} is not the sum")
    return statistics.median(times[1:])  # the first one imports NumPy


def back_s(run: Callable[[], Any]) -> float:
    """Return the median time until an array that an engine makes has been read here."""
    make_s = statistics.median(measure.seconds(make) for _ in range(measure.REPEATS))
    run()
    times = [measure.seconds(lambda: total(run())) for _ in range(measure.REPEATS)]
    return max(0.0, statistics.median(times) - make_s)


def ours() -> tuple[float, float, float]:
    """Return the times there and back, and the memory of an array on all engines, in copies."""
    import jupyter_mgpu as mgpu

    with mgpu.parpool(NUM_ENGINES) as pool:

        def there(array: Any) -> list[float]:
            results = mgpu.spmd(total, array, pool=pool)
            return [results[rank] for rank in pool.ranks]

        there_s = to_engines_s(there)
        return_s = back_s(lambda: mgpu.parfeval(make, pool=pool).result())
        pids = [os.getpid(), *(engine.pid for engine in pool.engines)]
        growth = [growth_in_copies(pool, pids) for _ in range(measure.REPEATS)]
    return there_s, return_s, statistics.median(growth)


def growth_in_copies(pool: Any, pids: list[int]) -> float:
    import jupyter_mgpu as mgpu

    array = np.random.default_rng(0).random(NUM_NUMBERS)
    time.sleep(KEPT_S)
    before_mb = measure.pss_mb(pids)
    pool["shared"] = array
    results = mgpu.spmd(total_of_shared, pool=pool)
    results = [results[rank] for rank in range(NUM_ENGINES)]
    grown_mb = measure.pss_mb(pids) - before_mb
    del pool["shared"], results
    return grown_mb * 1e6 / NUM_BYTES


def total_of_shared() -> float:
    from jupyter_mgpu.on_engine import context

    return total(context.read_value("shared"))


def ipyparallel_s() -> tuple[float, float]:
    with peers.ipyparallel_client(NUM_ENGINES) as client:
        view = client[:]
        there_s = to_engines_s(lambda array: view.apply_sync(total, array))
        return there_s, back_s(lambda: client[0].apply_sync(make))


def ray_s() -> tuple[float, float]:
    with peers.ray_session(NUM_ENGINES, object_store_memory=4 * 10**9) as ray:
        remote_total, remote_make = ray.remote(total), ray.remote(make)

        def there(array: Any) -> list[float]:
            reference = ray.put(array)
            return ray.get([remote_total.remote(reference) for _ in range(NUM_ENGINES)])

        return to_engines_s(there), back_s(lambda: ray.get(remote_make.remote()))


def dask_s() -> tuple[float, float]:
    with peers.dask_client(NUM_ENGINES) as client:
        workers = list(client.scheduler_info()["workers"])

        def there(array: Any) -> list[float]:
            (kept,) = client.scatter([array], broadcast=True, hash=False)
            return client.gather(
                [client.submit(total, kept, workers=[w], pure=False) for w in workers]
            )

        return to_engines_s(there), back_s(lambda: client.submit(make, pure=False).result())


def joblib_s() -> tuple[float, float]:
    from joblib import Parallel, delayed

    with Parallel(n_jobs=NUM_ENGINES) as parallel:
        there_s = to_engines_s(
            lambda array: parallel(delayed(total)(array) for _ in range(NUM_ENGINES))
        )
        return there_s, back_s(lambda: parallel([delayed(make)()])[0])


def main() -> list[measure.Row]:
    there_s, return_s, copies = ours()
    beside: dict[str, tuple[float | None, float | None]] = {}
    for name, measured in (
        ("joblib", joblib_s),
        ("Ray", ray_s),
        ("ipyparallel", ipyparallel_s),
        ("dask", dask_s),
    ):
        beside[name] = measure.or_none(measured) or (None, None)
    back = {name: times[1] for name, times in beside.items()}
    return [
        measure.Row(
            "400 MB array to 2 engines",
            there_s,
            "s",
            "<= 1.0x joblib",
            "<= 1.0x Ray",
            {name: times[0] for name, times in beside.items()},
        ),
        measure.Row(
            "400 MB array on 2 engines: PSS grows by", copies, "copies", "<= 1.1", "<= 1.1"
        ),
        measure.Row(
            "result of 400 MB back",
            return_s,
            "s",
            "<= 0.2x ipyparallel",
            "<= 0.1x",
            {"ipyparallel": back.pop("ipyparallel"), **back},
        ),
    ]


if __name__ == "__main__":
    measure.emit(main())
