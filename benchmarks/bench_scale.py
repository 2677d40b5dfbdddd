"""What an owner pays for each engine, on pools of 4 and of 32: the figures of docs/scale.md."""

import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import measure

import jupyter_mgpu as mgpu

FEW, MANY = 4, 32
IDLE_S = 5.0
CALLS = 20
TASKS = 2_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What one pool costs its kernel.

    Attributes:
        descriptors: Open files and sockets.
        threads: Python's.
        idle: Of a core, while nothing runs.
        call_s: A call on all engines, as a user waits for it.
        call_cpu_s: Of the kernel, for the same.
        task_cpu_s: Of the kernel, for a short task.
    """

    descriptors: int
    threads: int
    idle: float
    call_s: float
    call_cpu_s: float
    task_cpu_s: float


def cost_of(num_engines: int) -> Cost:
    """Open a pool and measure what it costs this process."""
    with mgpu.parpool(num_engines) as pool:
        mgpu.spmd(os.getpid)
        idle = cpu_s(lambda: time.sleep(IDLE_S)) / IDLE_S
        call_s = statistics.median(
            measure.seconds(lambda: mgpu.spmd(os.getpid)) for _ in range(CALLS)
        )
        call_cpu_s = cpu_s(lambda: [mgpu.spmd(os.getpid) for _ in range(CALLS)]) / CALLS
        task_cpu_s = cpu_s(lambda: pool.map(abs, range(TASKS))) / TASKS
        found = Cost(
            len(list(Path("/proc/self/fd").iterdir())),
            threading.active_count(),
            idle,
            call_s,
            call_cpu_s,
            task_cpu_s,
        )
    measure.step(f"{num_engines} engines: {found}")
    return found


def cpu_s(call: Callable[[], object]) -> float:
    """Return the processor time that this process spends on a call."""
    before_s = time.process_time()
    call()
    return time.process_time() - before_s


def main() -> list[measure.Row]:
    few, many = cost_of(FEW), cost_of(MANY)
    more = MANY - FEW
    return [
        measure.Row(
            "kernel: descriptors for each engine",
            (many.descriptors - few.descriptors) / more,
            "",
            "",
            "",
        ),
        measure.Row("kernel of 32 idle engines", many.idle * 100, "% of a core", "", ""),
        measure.Row("a call on 32 engines", many.call_s * 1e3, "ms", "", ""),
        measure.Row(
            "a call on 32 engines: kernel's processor time",
            many.call_cpu_s * 1e3,
            "ms",
            "",
            "",
        ),
        measure.Row(
            "a short task, 32 engines: kernel's processor time",
            many.task_cpu_s * 1e3,
            "ms",
            "",
            "",
            {"4 engines": few.task_cpu_s * 1e3},
        ),
    ]


if __name__ == "__main__":
    measure.emit(main())
