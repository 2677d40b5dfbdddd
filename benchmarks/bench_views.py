"""Four trainings that report at 50 Hz while their curves are shown: traffic, and the notebook."""

import collections
import json
import statistics
import time

import measure
import psutil

NUM_TRAININGS = 4
SECONDS = 12.0
CELL_PAUSE_S = 0.05

PREPARE = """
import time
import jupyter_mgpu as mgpu
from IPython.display import display
%load_ext jupyter_mgpu
mgpu.parpool({num}, idle_timeout=None)

def train():
    step = 0
    while not mgpu.stop_requested():
        step += 1
        mgpu.report(step=step, loss=1 / step, accuracy=1 - 1 / step, validation_loss=2 / step)
        time.sleep(0.02)

tasks = [mgpu.parfeval(train) for _ in range({num})]
while not all(len(task.metrics) > 1 for task in tasks):
    time.sleep(0.02)
""".replace("{num}", str(NUM_TRAININGS))
SHOW = "for task in tasks: display(task)\ndisplay(mgpu.current_pool())"
LONG = "while len(tasks[0].metrics) < 1500: time.sleep(0.1)"
CLEAN = "mgpu.cancel_all()"


class Page(measure.Notebook):
    """A kernel with a page that shows every view: it has opened a comm for each."""

    def show(self) -> int:
        """Show the views as a browser does, with a person in front; return how many there are."""
        cell = self.client.execute(SHOW, allow_stdin=True)
        found = []
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            if message["msg_type"] == "display_data":
                found += [value for key, value in content["data"].items() if "mgpu.view" in key]
            if content.get("execution_state") == "idle":
                break
        for state in found:
            self.open_comm(state["id"])
        return len(found)

    def open_comm(self, view_id: str) -> None:
        """Ask for a view, as the extension does."""
        content = {"comm_id": f"bench-{view_id}", "target_name": "jupyter_mgpu.view"}
        message = self.client.session.msg("comm_open", {**content, "data": {"id": view_id}})
        self.client.shell_channel.send(message)

    def processor_percent(self, seconds: float) -> float:
        """Return how much of a core the kernel takes while no cell runs: load changes it little."""
        kernel = psutil.Process(self.manager.provisioner.pid)
        begun, begun_s = kernel.cpu_times(), time.perf_counter()
        time.sleep(seconds)
        ended, passed_s = kernel.cpu_times(), time.perf_counter() - begun_s
        used_s = ended.user + ended.system - begun.user - begun.system
        return 100 * used_s / passed_s

    def traffic(self, seconds: float) -> tuple[float, float]:
        """Run `1 + 1` cells for a time.

        Returns:
            Bytes per second on iopub that are not of these cells, and the cells' 95th percentile
            in milliseconds.
        """
        self.drain()
        times_ms, sizes = [], collections.Counter()
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            begun_s = time.perf_counter()
            cell = self.begin("1 + 1")
            self.end(cell)
            times_ms.append((time.perf_counter() - begun_s) * 1e3)
            time.sleep(CELL_PAUSE_S)
            while self.client.iopub_channel.msg_ready():
                message = self.client.get_iopub_msg(timeout=1)
                own = message["msg_type"] in ("status", "execute_input", "execute_result")
                sizes[own] += len(json.dumps(message, default=str))
        return sizes[False] / seconds, statistics.quantiles(times_ms, n=20)[-1]


def main() -> None:
    """Measure."""
    with Page() as page:
        idle = page.traffic(SECONDS / 3)[1]
        page.run(PREPARE)
        measure.step("views are shown")
        num_views = page.show()
        if num_views != NUM_TRAININGS + 1:
            raise RuntimeError(f"{num_views} views were shown.")
        page.run(LONG)
        rates, delays = zip(*(page.traffic(SECONDS / 3) for _ in range(5)), strict=True)
        taken = statistics.median(page.processor_percent(SECONDS / 3) for _ in range(5))
        page.run(CLEAN)
        rate, delay = statistics.median(rates), statistics.median(delays)
        where = f"{NUM_TRAININGS} trainings shown at 50 Hz"
        measure.emit(
            [
                measure.Row(f"{where}: iopub", rate / 1e3, "kB/s", "< 200 kB/s", ""),
                measure.Row(
                    f"{where}: `1 + 1` cell, 95th percentile",
                    delay,
                    "ms",
                    "< 50 ms",
                    "< 20 ms",
                    {"idle kernel": idle},
                ),
                measure.Row(f"{where}: processor time of the kernel", taken, "% of a core", "", ""),
            ]
        )


if __name__ == "__main__":
    main()
