"""From the death of an engine to the error of its task, and to an engine on that rank again."""

import contextlib
import os
import signal
import statistics
import time

import measure

import jupyter_mgpu as mgpu
from jupyter_mgpu.errors import EngineDiedError


def die_once(pool: mgpu.Pool) -> tuple[float, float]:
    """Kill the engine of rank 1; return the seconds to the error and to the next answer."""
    pid = pool.submit_task(os.getpid, rank=1).result()
    task = pool.submit_task(time.sleep, (600,), rank=1)
    while not task.running():
        time.sleep(0.001)

    start_s = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(EngineDiedError):
        task.result(60)
    error_s = time.perf_counter() - start_s
    pool.submit_task(os.getpid, rank=1).result(60)
    respawn_s = time.perf_counter() - start_s
    measure.step(f"error after {error_s:.3f} s, new engine after {respawn_s:.3f} s")
    return error_s, respawn_s


def main() -> list[measure.Row]:
    with mgpu.parpool(2) as pool:
        deaths = [die_once(pool) for _ in range(measure.REPEATS)]
    error_s, respawn_s = map(statistics.median, zip(*deaths, strict=True))
    return [
        measure.Row("death to error", error_s, "s", "<= 1 s", "<= 0.1 s"),
        measure.Row("death to a new engine on the rank", respawn_s, "s", "<= 5 s", "<= 2 s"),
    ]


if __name__ == "__main__":
    measure.emit(main())
