"""20,000 tasks with results of 100 kB that nobody keeps: growth of all processes together."""

import collections
import gc
import os
import statistics
import time

import measure

import jupyter_mgpu as mgpu

NUM_TASKS = 20_000
NUM_WARM_UP = 1_000
NUM_WAITING = 64


def make_result() -> bytes:
    return os.urandom(100_000)


def run_tasks(pool: mgpu.Pool, num_tasks: int) -> None:
    waiting: collections.deque[mgpu.TaskFuture] = collections.deque()
    for _ in range(num_tasks):
        waiting.append(pool.submit(make_result))
        if len(waiting) == NUM_WAITING:
            waiting.popleft().result()
    while waiting:
        waiting.popleft().result()


def grow_once() -> tuple[float, float]:
    """Return by how many MB a new pool and this process grow, and the tasks per second."""
    with measure.watched() as processes, mgpu.parpool(2) as pool:
        run_tasks(pool, NUM_WARM_UP)
        gc.collect()
        before_mb = measure.pss_mb([*processes(), os.getpid()])
        start_s = time.perf_counter()
        run_tasks(pool, NUM_TASKS)
        rate = NUM_TASKS / (time.perf_counter() - start_s)
        gc.collect()
        growth_mb = measure.pss_mb([*processes(), os.getpid()]) - before_mb
    measure.step(f"{growth_mb:.1f} MB, {rate:.0f} tasks/s")
    return growth_mb, rate


def main() -> list[measure.Row]:
    rounds = [grow_once() for _ in range(measure.REPEATS)]
    growth_mb, rate = map(statistics.median, zip(*rounds, strict=True))
    return [
        measure.Row(
            "20,000 tasks of 100 kB results: growth", growth_mb, "MB", "< 50 MB", "< 10 MB"
        ),
        measure.Row("20,000 tasks of 100 kB results: rate", rate, "tasks/s", "", ""),
    ]


if __name__ == "__main__":
    measure.emit(main())
