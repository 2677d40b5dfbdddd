"""One network on two engines beside the same loop under torchrun, with the same threads.

The network is a Wide ResNet (16-2) on images of 32x32 pixels; starts are measured with a small one.
Run by torchrun, this file is the peer.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import measure
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import jupyter_mgpu as mgpu

NUM_RANKS, BATCH, WARM_UP, STEPS = 2, 64, 3, 8
NUM_IMAGES = BATCH * (WARM_UP + STEPS)
THREADS = max(1, len(os.sched_getaffinity(0)) // NUM_RANKS)


class Block(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU())
        self.second = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
        )
        is_same = before == after
        self.short = nn.Identity() if is_same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the short cut."""
        active = self.first(x)
        return self.short(active) + self.second(active)


def wide_resnet(depth: int = 16, width: int = 2) -> nn.Module:
    """Build the network of Zagoruyko and Komodakis for ten classes."""
    torch.manual_seed(0)
    widths = [16, 16 * width, 32 * width, 64 * width]
    blocks: list[nn.Module] = []
    for group in range(3):
        for place in range((depth - 4) // 6):
            before = widths[group + 1] if place else widths[group]
            blocks.append(Block(before, widths[group + 1], 1 if place or not group else 2))
    tail = nn.BatchNorm2d(widths[3]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    head = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
    return nn.Sequential(head, *blocks, *tail, nn.Linear(widths[3], 10))


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))


NETS = {"wide": wide_resnet, "small": small_net}


def images() -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    pixels = torch.randn(NUM_IMAGES, 3, 32, 32, generator=stream)
    return pixels, torch.randint(0, 10, (NUM_IMAGES,), generator=stream)


def note_time(path: str, _: object) -> None:
    """Write down when a step was told."""
    with Path(path).open("a") as file:
        file.write(f"{time.monotonic()}\n")


def loop_under_torchrun(kind: str, path: str) -> None:
    """Train as `train` does, in plain DDP."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    pixels, labels = images()
    net = DistributedDataParallel(NETS[kind]())
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    order = torch.randperm(NUM_IMAGES, generator=torch.Generator().manual_seed(0))
    for rows in order.split(BATCH):
        own = rows.tensor_split(NUM_RANKS)[rank]
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(net(pixels[own]), labels[own])
        loss.backward()
        sgd.step()
        loss.item()
        if rank == 0:
            note_time(path, None)
    torch.distributed.destroy_process_group()


def times_of(run: object, folder: Path) -> tuple[float, float]:
    """Run a training; return its seconds to the first step, and its images per second."""
    path = folder / f"{time.monotonic_ns()}"
    begun_s = time.monotonic()
    run(str(path))
    stamps_s = [float(line) for line in path.read_text().split()]
    return stamps_s[0] - begun_s, BATCH * STEPS / (stamps_s[-1] - stamps_s[WARM_UP - 1])


def run_torchrun(kind: str, path: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*command, f"--nproc-per-node={NUM_RANKS}", __file__, kind, path],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(THREADS)},
    )


def run_train(pool: mgpu.Pool, num_ranks: int, kind: str, path: str) -> None:
    options = mgpu.TrainingOptions(
        execution_environment="parallel",
        worker_load=num_ranks,
        optimizer="sgd",
        max_epochs=1,
        mini_batch_size=BATCH,
        callbacks=[partial(note_time, path)],
        verbose=False,
    )
    mgpu.train(NETS[kind](), images(), nn.CrossEntropyLoss(), options, pool=pool)


def main() -> list[measure.Row]:
    folder = Path(tempfile.mkdtemp())
    rates: dict[str, list[float]] = {"two": [], "one": [], "torchrun": []}
    starts_s: dict[str, list[float]] = {"two": [], "torchrun": []}
    with mgpu.parpool(NUM_RANKS) as pool:
        two, one = partial(run_train, pool, NUM_RANKS), partial(run_train, pool, 1)
        two("small", str(folder / "first"))  # imports torch on the engines
        for number in range(measure.REPEATS):
            measure.step(f"round {number + 1} of {measure.REPEATS}\n")
            # In turn: a machine that becomes slower does so for all of them.
            for name, run in (("two", two), ("torchrun", run_torchrun), ("one", one)):
                rates[name].append(times_of(partial(run, "wide"), folder)[1])
            for name, run in (("two", two), ("torchrun", run_torchrun)):
                starts_s[name].append(times_of(partial(run, "small"), folder)[0])
    speed = {name: statistics.median(values) for name, values in rates.items()}
    start_s = {name: statistics.median(values) for name, values in starts_s.items()}
    return [
        measure.Row(
            "train on 2 engines, WRN-16-2",
            speed["two"],
            "images/s",
            ">= 0.97x",
            "",
            {"torchrun": speed["torchrun"]},
        ),
        measure.Row(
            "train: 2 engines over 1", speed["two"], "images/s", "", "", {"1 engine": speed["one"]}
        ),
        measure.Row(
            "start of a second training, to its first step",
            start_s["two"],
            "s",
            "< 0.5 s",
            "",
            {"torchrun, whole start": start_s["torchrun"]},
        ),
    ]


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        loop_under_torchrun(*sys.argv[1:])
        # All is written. A thread of gloo's that drops a tensor while the interpreter ends aborts
        # the process now and then (pytorch issue 190489), so it does not end step by step.
        os._exit(0)
    else:
        measure.emit(main())
