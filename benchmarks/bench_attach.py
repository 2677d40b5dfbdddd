"""A kept pool with ended, running and queued tasks: how long a kernel takes to be attached."""

import statistics

import measure

import jupyter_mgpu as mgpu

TASKS_ENDED = 200
REPEATS = 9
NAME = "bench-attach"


def talk(lines: int) -> int:
    """Print and report as a short training does."""
    for i in range(lines):
        print("epoch", i)
        mgpu.report(i, loss=1 / (i + 1))
    return lines


def wait() -> None:
    """Keep an engine busy for the whole bench."""
    import time

    time.sleep(600)


def main() -> list[measure.Row]:
    """Start a kept pool, let it work, detach and attach again and again."""
    pool = mgpu.parpool(2, keep=True, name=NAME)
    try:
        mgpu.wait([pool.submit(talk, 50) for _ in range(TASKS_ENDED)])
        for _ in range(20):
            pool.submit(wait)
        took = []
        for _ in range(REPEATS):
            pool.detach()
            took.append(measure.seconds(lambda: mgpu.parpool(attach=NAME)))
            pool = mgpu.current_pool()
            if len(pool.tasks()) != 20 or len(pool.ended_tasks()) != TASKS_ENDED:
                found = len(pool.tasks()), len(pool.ended_tasks())
                raise RuntimeError(f"{found} tasks came back, not all.")
    finally:
        pool.shutdown(wait_for_tasks=False)
    bench = f"attach to a kept pool: 20 open and {TASKS_ENDED} ended tasks"
    return [measure.Row(bench, statistics.median(took), "s", "<= 0.3 s", "<= 0.1 s", {})]


if __name__ == "__main__":
    measure.emit(main())
