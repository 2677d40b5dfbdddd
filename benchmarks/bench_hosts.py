"""Engines on other hosts: what an array for all of them costs the links, and a cell on a slow one.

The hosts are network namespaces of this machine, which takes root. A process delays the packets:
few kernels have `tc netem`.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import namespaces
import numpy as np
from bench_data import total

NUM_BYTES = 100_000_000
NUM_ENGINES = 4
DELAY_S = 0.5e-3
TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))


@contextlib.contextmanager
def our_pool(names: list[str]) -> Iterator[Any]:
    """Start a pool with engines on hosts, the same number on each."""
    from far_pools import Loopback, far_plan, far_pool

    from jupyter_mgpu.engines import HostPlace
    from jupyter_mgpu.transport.placement import Placement

    plans = []
    for rank, name in enumerate(names):
        place = Placement(name, Loopback(prefix=("ip", "netns", "exec", name)))
        plans.append(far_plan(rank, place, HostPlace(0, 1, rank, len(names))))
    with far_pool(plans, address=namespaces.ADDRESS) as pool:
        yield pool


@contextlib.contextmanager
def their_files(names: list[str]) -> Iterator[Path]:
    """Start ipyparallel's controller here and its engines on hosts; give its client's file."""
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        security = folder / "profile_default" / "security"
        commands = [
            ["-m", "ipyparallel.controller", f"--ip={namespaces.ADDRESS}"],
            *(["-m", "ipyparallel.engine"] for _ in names),
        ]
        files = ["", *(f"--file={security}/ipcontroller-engine.json" for _ in names)]
        prefixes = [[], *(["ip", "netns", "exec", name] for name in names)]
        for command, file, prefix in zip(commands, files, prefixes, strict=True):
            words = [*prefix, sys.executable, *command, *filter(None, [file])]
            process = subprocess.Popen(
                [*words, f"--ipython-dir={folder}", "--log-level=40"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            )
            undo.callback(process.wait)
            undo.callback(os.killpg, process.pid, signal.SIGKILL)  # with its children
            while not (security / "ipcontroller-engine.json").exists():
                measure.time.sleep(0.02)
        yield security / "ipcontroller-client.json"


def broadcast(
    names: list[str], run: Callable[[Any], list[float]], *, again: bool = False
) -> tuple[float, float]:
    """Return the median time of an array that is new each time, and how often it crosses links.

    Args:
        names: The hosts.
        run: Has all engines read an array.
        again: Count the second use of each array only.
    """
    times, copies = [], []
    generator = np.random.default_rng(0)
    for repeat in range(measure.REPEATS + 1):
        array = generator.random(NUM_BYTES // 8)
        if again:
            run(array)
        before = namespaces.crossed_bytes(names)
        sums: list[list[float]] = []
        times.append(measure.seconds(lambda array=array, sums=sums: sums.append(run(array))))
        copies.append((namespaces.crossed_bytes(names) - before) / NUM_BYTES)
        if not np.allclose(sums[0], array.sum()):
            raise ValueError(f"round {repeat}: {sums[0]} is not the sum")
    return statistics.median(times[1:]), statistics.median(copies[1:])


def broadcasts() -> Iterator[measure.Row]:
    """Measure an array for four engines on two hosts."""
    with namespaces.hosts(2) as names:
        chosen = sorted(names * (NUM_ENGINES // 2))
        with our_pool(chosen) as pool:
            import jupyter_mgpu as mgpu

            def ours(array: Any) -> list[float]:
                return list(mgpu.spmd(total, array, pool=pool))

            measure.step("ours")
            new_s, new_copies = broadcast(names, ours)
            again_s, again_copies = broadcast(names, ours, again=True)
        with their_files(chosen) as file:
            import ipyparallel as ipp

            with ipp.Client(file) as client:
                client.wait_for_engines(NUM_ENGINES, interactive=False)
                measure.step("ipyparallel")
                peer_s, peer_copies = broadcast(
                    names, lambda array: client[:].apply_sync(total, array)
                )
    what = "100 MB to 4 engines on 2 hosts"
    yield measure.Row(what, new_s, "s", "", "", {"ipyparallel": peer_s})
    yield measure.Row(
        f"{what}: crosses the links",
        new_copies,
        "times",
        "2",
        "2",
        {"ipyparallel": peer_copies},
    )
    yield measure.Row(f"{what}, once more", again_s, "s", "", "")
    yield measure.Row(f"{what}, once more: crosses the links", again_copies, "times", "0", "0")


PREPARE = """
import sys
sys.path.insert(0, {folder!r})
import measure, bench_hosts, ipyparallel as ipp
shell = get_ipython()
%load_ext jupyter_mgpu
pool = bench_hosts.our_pool({names!r})
pool.__enter__()
client = ipp.Client({file!r})
client.wait_for_engines({number}, interactive=False)
view = client[:]
view.block = True
view.activate()
_ = view.apply_sync(lambda: 0)
"""

MEASURE = """
# By turns: what else the machine does hits both alike.
print(*bench_hosts.by_turns_s(
    *(lambda magic=magic: shell.run_cell_magic(magic, "", "pass") for magic in ("spmd", "px"))
))
"""


def by_turns_s(*calls: Callable[[], Any], turns: int = 300) -> list[float]:
    """Return the median time of each call."""
    times: list[list[float]] = [
        [measure.seconds_bare(call) for call in calls] for _ in range(turns)
    ]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def cells() -> Iterator[measure.Row]:
    """Measure an empty cell on an engine that a round trip of 1 ms leads to."""
    with (
        namespaces.hosts(2, DELAY_S) as names,
        their_files(names) as file,
        measure.Notebook() as notebook,
    ):
        folder = str(Path(__file__).parent)
        notebook.run(PREPARE.format(folder=folder, names=names, file=str(file), number=len(names)))
        ours_s, peer_s = map(float, notebook.run(MEASURE).split()[-2:])
        notebook.run("pool.__exit__(None, None, None)\nclient.close()")
    yield measure.Row(
        "empty %%spmd cell on 2 hosts, round trip 1 ms",
        ours_s * 1e3,
        "ms",
        "<= 1.2x",
        "<= 1.0x",
        {"ipyparallel %%px": peer_s * 1e3},
    )


def main() -> Iterator[measure.Row]:
    if os.getuid() != 0:
        measure.step("not measured: only root makes network namespaces")
        return
    yield from broadcasts()
    yield from cells()


if __name__ == "__main__":
    measure.emit(main())
