"""A pool of two over ssh, on two hosts that are network namespaces of this machine."""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import ipyparallel as ipp
import measure

import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from ssh_hosts import ADDRESS, Hosts, open_hosts, run, why_not

LINK_DELAY = "0.5ms"
"""On each end of a link, so that its round trip takes twice as long."""


def start_ours(hosts: Hosts) -> mgpu.Pool:
    """Start a pool of one engine on each host, and ask both something."""
    chosen = tuple(
        HostDescription(host.name, host.name, gpus="none", engines=1) for host in (hosts.a, hosts.b)
    )
    options = SshOptions(config=hosts.config)
    pool = mgpu.parpool(cluster=ClusterDescription("lab", "ssh", hosts=chosen, options=options))
    mgpu.spmd(socket.gethostname)
    return pool


def start_ipyparallel(hosts: Hosts) -> tuple[ipp.Cluster, ipp.Client]:
    """Do the same with ipyparallel's own ssh launcher as it comes."""
    cluster = ipp.Cluster(engines="ssh", controller_ip=ADDRESS, log_level=40)
    launcher = cluster.config.SSHEngineSetLauncher
    launcher.engines = {"hosta": 1, "hostb": 1}
    launcher.ssh_args = launcher.scp_args = ["-F", str(hosts.config)]
    launcher.remote_python = sys.executable
    launcher.remote_profile_dir = tempfile.mkdtemp(prefix="mgpu-ipp-", dir=hosts.config.parent)
    client = cluster.start_and_connect_sync(n=2, activate=False)
    client[:].apply_sync(socket.gethostname)
    return cluster, client


def delay_links(hosts: Hosts) -> str:
    """Give each link a round trip of 1 ms, where the system can; say what it is."""
    try:
        for host in (hosts.a, hosts.b):
            delay = ("dev", "eth0", "root", "netem", "delay", LINK_DELAY)
            run("ip", "netns", "exec", host.namespace, "tc", "qdisc", "add", *delay)
        for port in ("to-a", "to-b"):
            run("tc", "qdisc", "add", "dev", port, "root", "netem", "delay", LINK_DELAY)
    except (subprocess.CalledProcessError, FileNotFoundError):
        measure.step("links cannot be delayed here (tc, sch_netem): measured as they are")
        return "undelayed link"
    return "1 ms link"


def measure_ours(hosts: Hosts) -> tuple[float, float]:
    """Return the seconds to start a pool, and of a call on both engines."""
    pools: list[mgpu.Pool] = []
    start_s = measure.seconds(lambda: pools.append(start_ours(hosts)))
    with pools[0]:
        trip_s = measure.median_of_many_s(lambda: list(mgpu.spmd(os.getpid)), rounds=1)
    measure.step(f"started in {start_s:.2f} s, a call in {trip_s * 1000:.2f} ms")
    return start_s, trip_s


def measure_ipyparallel(hosts: Hosts) -> tuple[float, float]:
    """Do the same with ipyparallel, once: it takes long."""
    clusters: list[tuple[ipp.Cluster, ipp.Client]] = []
    start_s = measure.seconds(lambda: clusters.append(start_ipyparallel(hosts)))
    cluster, client = clusters[0]
    trip_s = measure.median_of_many_s(lambda: client[:].apply_sync(os.getpid))
    client.close()
    cluster.stop_cluster_sync()
    return start_s, trip_s


def main() -> list[measure.Row]:
    if (reason := why_not()) is not None:
        measure.step(f"not measured: {reason}")
        return []
    with open_hosts() as hosts:
        where = delay_links(hosts)
        ours = [measure_ours(hosts) for _ in range(measure.REPEATS)]
        start_s, trip_s = map(statistics.median, zip(*ours, strict=True))
        peer_start_s, peer_trip_s = measure_ipyparallel(hosts)
    return [
        measure.Row(
            "pool of 2 over ssh", start_s, "s", "<= 4 s", "", {"ipyparallel": peer_start_s}
        ),
        measure.Row(
            f"spmd on 2 hosts, {where}",
            trip_s * 1000,
            "ms",
            "<= 1.2x",
            "",
            {"ipyparallel": peer_trip_s * 1000},
        ),
    ]


if __name__ == "__main__":
    measure.emit(main())
