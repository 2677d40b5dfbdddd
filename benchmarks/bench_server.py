"""The Jupyter server's side of the sidebar: what it costs while nobody and while three watch.

Sixteen GPUs of the C stub of libnvidia-ml whose numbers all change every second, a pool of two CPU
engines, and a training that reports twenty times a second. The time in the stub counts as well.
"""

import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import measure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import gpu_stubs
import server_processes

NUM_GPUS, NUM_VIEWERS = 16, 3
SECONDS, WARM_UP_S = 10, 3
SERVER = """
import signal, sys
from pathlib import Path
from jupyter_mgpu.monitor.sampler import sampler
from jupyter_server.serverapp import main
def count(*_):
    frame = sampler._frame
    Path({answer!r}).write_text(str(0 if frame is None else frame.number + 1))
signal.signal(signal.SIGUSR2, count)
main()
"""
TRAINING = """
%load_ext jupyter_mgpu
%parpool 2
import jupyter_mgpu as mgpu
def train():
    import time
    for step in range(10**6):
        mgpu.report(step=step, loss=1 / (step + 1), rate=0.1)
        time.sleep(0.05)
training = mgpu.parfeval(train, name="training")
"""
STUCK = "import time\nstuck = mgpu.parfeval(time.sleep, 600, name={name!r})\nstuck.result()"


class Viewer:
    """A client that only counts what comes."""

    def __init__(self, server: server_processes.RunningServer) -> None:
        self.num_bytes = 0
        self._stream = server.stream()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(Exception):
            while text := self._stream.recv():
                self.num_bytes += len(text) + 4  # the frame's head

    def close(self) -> None:
        """Go away."""
        self._stream.close()


class Changing:
    """Lets every number of every GPU change once a second."""

    def __init__(self, machine: gpu_stubs.GpuMachine) -> None:
        self._machine = machine
        self._is_over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        tick = 0
        while not self._is_over.wait(1):
            tick += 1
            self._machine.write(scenario(tick))

    def close(self) -> None:
        """Leave them as they are."""
        self._is_over.set()


def scenario(tick: int) -> str:
    """All GPUs of the machine, each busy in its own way."""
    lines = []
    for index in range(NUM_GPUS):
        phase = (7 * index + 3 * tick) % 50
        facts = {"util": 50 + phase, "used": 40_000 + 97 * phase + tick}
        lines.append(gpu_stubs.gpu(index, **facts, power=300 + phase, temperature=50 + phase))
    return "\n".join(lines)


def cpu_s(pid: int) -> float:
    """Return the time that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percent_of_a_core(pid: int) -> float:
    """Measure a process for some seconds."""
    before_s, begun_s = cpu_s(pid), time.monotonic()
    time.sleep(SECONDS)
    return 100 * (cpu_s(pid) - before_s) / (time.monotonic() - begun_s)


def num_samples(server: server_processes.RunningServer, answer: Path) -> int:
    """Ask the server's process how many samples it has taken."""
    answer.unlink(missing_ok=True)
    os.kill(server.process.pid, server_processes.signal.SIGUSR2)
    while not answer.exists() or not answer.read_text(encoding="ascii"):
        time.sleep(0.01)
    return int(answer.read_text(encoding="ascii"))


def idle(server: server_processes.RunningServer, answer: Path) -> Iterator[measure.Row]:
    """Measure it while nobody watches."""
    before = num_samples(server, answer)
    percent = percent_of_a_core(server.process.pid)
    samples = num_samples(server, answer) - before
    measure.step(f"idle: {samples} samples, {percent:.2f} % of a core")
    yield measure.Row(f"server, nobody watches for {SECONDS} s: samples", samples, "", "0", "0")


def watched(server: server_processes.RunningServer) -> Iterator[measure.Row]:
    """Measure it while three clients watch."""
    percents, rates = [], []
    for _ in range(measure.REPEATS):
        viewers = [Viewer(server) for _ in range(NUM_VIEWERS)]
        time.sleep(WARM_UP_S)
        before = sum(viewer.num_bytes for viewer in viewers)
        percents.append(percent_of_a_core(server.process.pid))
        come = sum(viewer.num_bytes for viewer in viewers) - before
        rates.append(come / NUM_VIEWERS / SECONDS / 1000)
        for viewer in viewers:
            viewer.close()
        measure.step(f"{percents[-1]:.2f} % of a core, {rates[-1]:.2f} kB/s each")
    name = f"server, {NUM_VIEWERS} viewers, {NUM_GPUS} GPUs, 1 Hz"
    yield measure.Row(name, statistics.median(percents), "% of a core", "< 1 %", "")
    yield measure.Row(f"{name}: to each", statistics.median(rates), "kB/s", "< 5 kB/s", "")


def cancelled(
    server: server_processes.RunningServer, notebook: measure.Notebook
) -> Iterator[measure.Row]:
    """Measure from the request until all is over, while the kernel is blocked by the task."""
    seconds = []
    for number in range(measure.REPEATS):
        name = f"stuck {number}"
        cell = notebook.begin(STUCK.format(name=name))
        task = None
        while task is None:
            rows = server.sections()["tasks"].values()
            task = next((r for r in rows if (r["name"], r["state"]) == (name, "running")), None)
        path = f"jupyter-mgpu/pools/{task['pool']}/cancel"
        start_s = time.perf_counter()
        server.request(path, {"task": task["id"]})
        notebook.end(cell)
        seconds.append(time.perf_counter() - start_s)
        measure.step(f"cancelled in {seconds[-1]:.3f} s")
    yield measure.Row(
        "cancel a task by the server, kernel busy", statistics.median(seconds), "s", "< 1 s", ""
    )


def main() -> Iterator[measure.Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpu_stubs.build_libraries(folder)
        machine = gpu_stubs.make_machine(scenario(0), folder, folder)
        answer = folder / "samples"
        program = ["-c", SERVER.format(answer=str(answer))]
        with (
            server_processes.running_server(folder, dict(machine), program=program) as server,
            measure.Notebook() as notebook,
        ):
            yield from idle(server, answer)
            notebook.run(TRAINING)
            changing = Changing(machine)
            yield from watched(server)
            changing.close()
            yield from cancelled(server, notebook)


if __name__ == "__main__":
    measure.emit(main())
