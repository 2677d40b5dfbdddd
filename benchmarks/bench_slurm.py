"""Two engines as a job of an idle Slurm on this machine: seconds to their first answers."""

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import ipyparallel as ipp
import measure

import jupyter_mgpu as mgpu
from jupyter_mgpu import clusters

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import slurm


def start_ours() -> float:
    """Start a pool, ask every engine something, end it."""
    described = replace(clusters.find("slurm"), gpus="none")

    def start() -> None:
        mgpu.parpool(2, cluster=described)
        mgpu.spmd(os.getpid)

    elapsed_s = measure.seconds(start)
    mgpu.current_pool().shutdown()
    wait_for_empty_queue()
    return elapsed_s


def start_ipyparallel() -> float:
    """Do the same with ipyparallel as it comes."""
    started = []

    def start() -> None:
        cluster = ipp.Cluster(n=2, engines="slurm", controller_ip="127.0.0.1", log_level=40)
        client = cluster.start_and_connect_sync(activate=False)
        client[:].apply_sync(os.getpid)
        started.append((cluster, client))

    elapsed_s = measure.seconds(start)
    cluster, client = started[0]
    client.close()
    cluster.stop_cluster_sync()
    wait_for_empty_queue()
    return elapsed_s


def wait_for_empty_queue() -> None:
    """Wait until the nodes are idle again."""
    while os.popen("squeue --noheader").read():
        time.sleep(0.1)


def main() -> list[measure.Row]:
    """Measure both by turns; the first start, with cold files, does not count."""
    with (
        tempfile.TemporaryDirectory(prefix="mgpu-") as folder,
        slurm.running(Path(folder), {"node1": 2, "node2": 2}) as environment,
    ):
        os.environ["SLURM_CONF"] = environment["SLURM_CONF"]
        os.chdir(folder)  # where ipyparallel puts its scripts
        start_ours()
        ours, theirs = [], []
        for _ in range(measure.REPEATS):
            ours.append(start_ours())
            measure.step(f"ours: {ours[-1]:.2f} s")
            theirs.append(start_ipyparallel())
            measure.step(f"ipyparallel: {theirs[-1]:.2f} s")
    bench = "pool start on an idle Slurm, 2 engines ready"
    peers = {"ipyparallel": statistics.median(theirs)}
    return [measure.Row(bench, statistics.median(ours), "s", "<= 3 s", "", peers)]


if __name__ == "__main__":
    measure.emit(main())
