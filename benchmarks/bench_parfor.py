"""10,000 trivial iterations beside five other projects; a loop of 100,000: first result, memory."""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import measure
import peers

NUM_ENGINES = 2
NUM_ITEMS = 10_000
NUM_FOR_SLOW = 1_000
"""So many items are enough to see the rate of a peer that takes half a minute for all."""
NUM_LARGE = 100_000


def trivial(item: int) -> int:
    return item


def for_all_s(run: Callable[[range], Any], num_items: int = NUM_ITEMS) -> float:
    """Return the median time of a loop, scaled to NUM_ITEMS."""
    run(range(NUM_ENGINES))
    times = [measure.seconds(lambda: run(range(num_items))) for _ in range(measure.REPEATS)]
    return statistics.median(times) * NUM_ITEMS / num_items


def ours() -> tuple[float, float, float]:
    """Return the time of the loop, the time to the first result of a large one, and its growth."""
    import jupyter_mgpu as mgpu

    with mgpu.parpool(NUM_ENGINES) as pool:
        loop_s = for_all_s(lambda items: mgpu.parfor(trivial, items, pool=pool))
        before_mb = measure.pss_mb([os.getpid()])
        firsts_s = [first_result_s(pool) for _ in range(measure.REPEATS)]
        growth_mb = measure.pss_mb([os.getpid()]) - before_mb
    return loop_s, statistics.median(firsts_s), growth_mb


def first_result_s(pool: Any) -> float:
    from jupyter_mgpu.loops import run_loop
    from jupyter_mgpu.loops.options import LoopOptions

    came_s: list[float] = []

    def note(index: int, _: int) -> None:
        if index == 0:
            came_s.append(time.perf_counter())

    start_s = time.perf_counter()
    run_loop(trivial, [range(NUM_LARGE)], LoopOptions(), pool=pool, on_result=note)
    return came_s[0] - start_s


def ipyparallel_s() -> float:
    with peers.ipyparallel_client(NUM_ENGINES) as client:
        view = client.load_balanced_view()
        return for_all_s(lambda items: view.map_sync(trivial, items), NUM_FOR_SLOW)


def ray_s() -> float:
    with peers.ray_session(NUM_ENGINES) as ray:
        remote = ray.remote(trivial)
        return for_all_s(lambda items: ray.get([remote.remote(item) for item in items]))


def dask_s() -> float:
    with peers.dask_client(NUM_ENGINES) as client:
        return for_all_s(
            lambda items: client.gather(client.map(trivial, items, pure=False)), NUM_FOR_SLOW
        )


def loky_s() -> float:
    with peers.loky_executor(NUM_ENGINES) as executor:
        return for_all_s(lambda items: list(executor.map(trivial, items)))


def joblib_s() -> float:
    """It chooses its batches by their duration, as we do."""
    from joblib import Parallel, delayed

    with Parallel(n_jobs=NUM_ENGINES) as parallel:
        return for_all_s(lambda items: parallel(delayed(trivial)(item) for item in items))


def main() -> list[measure.Row]:
    beside = {
        "ipyparallel": ipyparallel_s,
        "Ray": ray_s,
        "dask": dask_s,
        "loky": loky_s,
        "joblib": joblib_s,
    }
    loop_s, first_s, growth_mb = ours()
    name = f"parfor of {NUM_LARGE:,} items"
    return [
        measure.Row(
            f"parfor of {NUM_ITEMS:,} trivial iterations",
            loop_s,
            "s",
            "<= 0.1x ipyparallel",
            "<= 1.0x loky",
            {peer: measure.or_none(measured) for peer, measured in beside.items()},
        ),
        measure.Row(f"{name}: first result", first_s, "s", "<= 1 s", ""),
        measure.Row(f"{name}: growth of the kernel", growth_mb, "MB", "< 200 MB", ""),
    ]


if __name__ == "__main__":
    measure.emit(main())
