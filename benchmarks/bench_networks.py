"""Eight small networks on two engines beside a plain loop, and the notebook meanwhile."""

import statistics
import time

import measure

NUM_NETWORKS = 8
CELL_PAUSE_S = 0.05

PREPARE = """
import time
import torch
from sklearn.datasets import load_digits
from torch import nn
import jupyter_mgpu as mgpu
%load_ext jupyter_mgpu
%parpool 2
digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
y = torch.tensor(digits.target)

def train(rate, epochs=40):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9)
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return float((net(x).argmax(1) == y).float().mean())

rates = [0.01 * (i + 1) for i in range({num})]
_ = mgpu.parfor(train, [0.01, 0.01], [1, 1])  # the engines have imported torch
""".replace("{num}", str(NUM_NETWORKS))

TIMED = "begun = time.perf_counter()\n_ = {call}\nprint(time.perf_counter() - begun)"
LOOP = TIMED.format(call="[train(rate) for rate in rates]")
OURS = TIMED.format(call="mgpu.parfor(train, rates, chunk=1)")
BACKGROUND = "futures = [mgpu.parfeval(train, rate) for rate in rates * 3]"


def cells_ms(notebook: measure.Notebook, seconds: float) -> float:
    """Return the 95th percentile of `1 + 1` cells that are run for some seconds."""
    times = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        times.append(measure.seconds_bare(lambda: notebook.end(notebook.begin("1 + 1"))))
        notebook.drain()
        time.sleep(CELL_PAUSE_S)
    return statistics.quantiles(times, n=20)[-1] * 1e3


def main() -> None:
    with measure.Notebook() as notebook:
        notebook.run(PREPARE)
        pairs = [
            (float(notebook.run(OURS).split()[-1]), float(notebook.run(LOOP).split()[-1]))
            for _ in range(measure.REPEATS)
        ]
        ours_s, loop_s = (statistics.median(times) for times in zip(*pairs, strict=True))
        bench = f"{NUM_NETWORKS} small networks on 2 engines"
        peers = {"plain loop, 1 thread": loop_s}
        measure.emit([measure.Row(bench, ours_s, "s", "<= 0.59x", "<= 0.53x", peers)])

        idle_ms = cells_ms(notebook, 3)
        notebook.run(BACKGROUND)
        busy_ms = cells_ms(notebook, 6)
        notebook.run("mgpu.cancel_all()\n%parpool stop")
        bench = "`1 + 1` cell while networks train, 95th percentile"
        peers = {"idle kernel": idle_ms}
        measure.emit([measure.Row(bench, busy_ms, "ms", "< 50 ms", "< 20 ms", peers)])


if __name__ == "__main__":
    main()
