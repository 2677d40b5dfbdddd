"""Watching eight GPUs at 1 Hz: what the sampler's process takes of a core.

The GPUs are those of the C stub of libnvidia-ml, each with an engine's process and its lease; the
time in the stub counts as well.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import gpu_stubs

NUM_GPUS = 8
SECONDS, WARM_UP_S = 12, 3
WATCHER = f"""
import time
from jupyter_mgpu.leases import LeaseBook
from jupyter_mgpu.monitor import EngineProcess, Watch
pids = [int(pid) for pid in input().split()]
book = LeaseBook()
claims = [book.claim([uuid], rank=rank, pool="bench") for rank, uuid in enumerate(input().split())]
engines = [EngineProcess(pid, "bench", rank) for rank, pid in enumerate(pids)]
seen = []
with Watch(engines=lambda: engines, on_sample=seen.append):
    time.sleep({WARM_UP_S})
    before, before_s = time.process_time(), time.monotonic()
    time.sleep({SECONDS})
    used, passed_s = time.process_time() - before, time.monotonic() - before_s
last = seen[-1]
assert [len(gpu.users) for gpu in last.gpus] == [1] * {NUM_GPUS}, last
assert all(gpu.utilization_percent == 50 for gpu in last.gpus), last
assert all(engine.rss_bytes for engine in last.engines), last
assert len(seen) >= {SECONDS + WARM_UP_S - 2}, len(seen)
print(100 * used / passed_s)
"""


def main() -> list[measure.Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpu_stubs.build_libraries(folder)
        lines = [gpu_stubs.gpu(i, util=50, used=4096) for i in range(NUM_GPUS)]
        machine = gpu_stubs.make_machine("\n".join(lines), folder, folder)
        percents = [one_round(machine) for _ in range(measure.REPEATS)]
    return [
        measure.Row(
            f"watching {NUM_GPUS} GPUs at 1 Hz",
            statistics.median(percents),
            "% of a core",
            "<= 1 %",
            "<= 0.3 %",
        )
    ]


def one_round(machine: gpu_stubs.GpuMachine) -> float:
    engines = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        for _ in range(NUM_GPUS)
    ]
    used = [f"process {i} pid={engine.pid} memory=4000" for i, engine in enumerate(engines)]
    try:
        for line in used:
            machine.add(line)
        with machine.start(WATCHER) as watcher:
            pids = " ".join(str(engine.pid) for engine in engines)
            uuids = " ".join(map(gpu_stubs.gpu_uuid, range(NUM_GPUS)))
            output, errors = watcher.communicate(f"{pids}\n{uuids}\n")
        if watcher.returncode != 0:
            raise RuntimeError(errors)
    finally:
        for line in used:
            machine.remove(line)
        for engine in engines:
            engine.communicate(b"\n")
    measure.step(f"{float(output):.2f} % of a core")
    return float(output)


if __name__ == "__main__":
    measure.emit(main())
