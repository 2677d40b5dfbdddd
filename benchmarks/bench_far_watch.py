"""Watching another host with eight GPUs over one of its engines: processor time and memory there.

The GPUs are those of the C stub of libnvidia-ml; the time in the stub counts as well. Two engines
run there, and the owner is on this machine.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import gpu_stubs

TESTS = str(Path(__file__).parents[1] / "tests")
NUM_GPUS = 8
SECONDS, WARM_UP_S = 12, 3
WATCHER = f"""
import json, sys, time
import psutil
from far_pools import Loopback, far_pool
from host_duo import REPORTER, duo_plans
from jupyter_mgpu.monitor import Watch
from jupyter_mgpu.snapshots import engine_processes, host_readings

def spent(processes):
    return [sum(process.cpu_times()[:2]) for process in processes]

launcher = Loopback(json.loads(sys.stdin.readline()))
with far_pool(duo_plans(launcher)) as pool:
    core, seen = pool.owner._core, []
    guard = psutil.Process(pool.engines[1].pid).parent()
    def measure(seconds):
        before, before_s = spent(processes), time.monotonic()
        time.sleep(seconds)
        passed_s = time.monotonic() - before_s
        return [100 * (now - was) / passed_s for was, now in zip(before, spent(processes))]
    processes = [guard]
    time.sleep({WARM_UP_S})
    (unwatched,) = measure({SECONDS})
    with Watch(engines=engine_processes, on_sample=seen.append, hosts=host_readings):
        time.sleep({WARM_UP_S})
        (sampler,) = [c for c in guard.children() if REPORTER in c.cmdline()]
        processes = [guard, sampler]
        watched = measure({SECONDS})
        rss = sampler.memory_info().rss
    last = seen[-1]
    assert len(last.gpus) == {NUM_GPUS}, last
    assert all(gpu.utilization_percent == 50 for gpu in last.gpus), last
    print(json.dumps({{"percent": sum(watched) - unwatched, "mib": rss / 2**20}}))
"""


def main() -> list[measure.Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpu_stubs.build_libraries(folder)
        lines = [gpu_stubs.gpu(i, util=50, used=4096) for i in range(NUM_GPUS)]
        machine = gpu_stubs.make_machine("\n".join(lines), folder, folder)
        rounds = [one_round(machine) for _ in range(measure.REPEATS)]
    return [
        measure.Row(
            f"watching another host's {NUM_GPUS} GPUs at 1 Hz, {what} there",
            statistics.median(found[name] for found in rounds),
            unit,
            *bars,
        )
        for what, name, unit, bars in (
            ("processor time", "percent", "% of a core", ("<= 1 %", "<= 0.3 %")),
            ("memory", "mib", "MiB", ("<= 50 MiB", "<= 25 MiB")),
        )
    ]


def one_round(machine: gpu_stubs.GpuMachine) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", WATCHER],
        input=f"{json.dumps(machine)}\n",
        env={**machine, "PYTHONPATH": TESTS, "LD_LIBRARY_PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    measure.step(str(found))
    return found


if __name__ == "__main__":
    measure.emit(main())
