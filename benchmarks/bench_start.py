"""A pool of two: seconds to its first answers, processes and memory before any user code."""

import os
import statistics
from dataclasses import dataclass

import ipyparallel as ipp
import measure

import jupyter_mgpu as mgpu


@dataclass(frozen=True, slots=True)
class Start:
    """What one start took."""

    seconds: float
    processes: int
    megabytes: float


def start_ours(num_engines: int) -> Start:
    """Start a pool, ask every engine something, look at its processes, end it."""
    pools = []

    def start() -> None:
        pools.append(mgpu.parpool(num_engines))
        mgpu.spmd(os.getpid)

    with measure.watched() as processes:
        elapsed_s = measure.seconds(start)
        pids = processes()
        found = Start(elapsed_s, len(pids), measure.pss_mb(pids))
        pools[0].shutdown()
        measure.kill(pids)
    return found


def start_ipyparallel(num_engines: int) -> Start:
    """Do the same with ipyparallel as it comes."""
    clusters = []

    def start() -> None:
        cluster = ipp.Cluster(n=num_engines, log_level=40)
        client = cluster.start_and_connect_sync(activate=False)
        client[:].apply_sync(os.getpid)
        clusters.append((cluster, client))

    with measure.watched() as processes:
        elapsed_s = measure.seconds(start)
        pids = processes()
        found = Start(elapsed_s, len(pids), measure.pss_mb(pids))
        cluster, client = clusters[0]
        client.close()
        cluster.stop_cluster_sync()
        measure.kill(pids)
    return found


def compare(num_engines: int) -> tuple[Start, Start]:
    """Return our medians and ipyparallel's, measured by turns."""
    ours, theirs = [], []
    for _ in range(measure.REPEATS):
        ours.append(start_ours(num_engines))
        measure.step(f"ours: {ours[-1]}")
        theirs.append(start_ipyparallel(num_engines))
        measure.step(f"ipyparallel: {theirs[-1]}")
    return median(ours), median(theirs)


def median(starts: list[Start]) -> Start:
    """Return the median of each number."""
    return Start(
        statistics.median(start.seconds for start in starts),
        round(statistics.median(start.processes for start in starts)),
        statistics.median(start.megabytes for start in starts),
    )


def main() -> list[measure.Row]:
    ours, theirs = compare(2)
    return [
        measure.Row(
            "pool start, 2 engines ready",
            ours.seconds,
            "s",
            "<= 0.33x",
            "<= 0.2x",
            {"ipyparallel": theirs.seconds},
        ),
        measure.Row(
            "pool of 2: processes",
            ours.processes,
            "",
            "<= 8",
            "<= 5",
            {"ipyparallel": theirs.processes},
        ),
        measure.Row(
            "pool of 2: PSS before user code",
            ours.megabytes,
            "MB",
            "<= 0.8x",
            "<= 0.5x",
            {"ipyparallel": theirs.megabytes},
        ),
    ]


if __name__ == "__main__":
    measure.emit(main())
