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


def stop_ipyparallel(cluster: ipp.Cluster, client: ipp.Client) -> None:
    client.close()
    cluster.stop_cluster_sync()


def delay_links(hosts: Hosts) -> str | None:
    """Give each link a round trip of 1 ms; None where the system cannot."""
    try:
        for host in (hosts.a, hosts.b):
            delay = ("dev", "eth0", "root", "netem", "delay", LINK_DELAY)
            run("ip", "netns", "exec", host.namespace, "tc", "qdisc", "add", *delay)
        for port in ("to-a", "to-b"):
            run("tc", "qdisc", "add", "dev", port, "root", "netem", "delay", LINK_DELAY)
    except (subprocess.CalledProcessError, FileNotFoundError):
        measure.step("links cannot be delayed here (tc, sch_netem): measured as they are")
        return None
    return "1 ms link"


def main() -> None:
    if (reason := why_not()) is not None:
        measure.step(f"not measured: {reason}")
        return
    with open_hosts() as hosts:
        ours_s = [time_ours(hosts) for _ in range(measure.REPEATS)]
        peer_s = measure.or_none(lambda: time_ipyparallel(hosts))
        start = measure.Row(
            "pool of 2 over ssh",
            statistics.median(ours_s),
            "s",
            "<= 4 s",
            "",
            {"ipyparallel": peer_s},
        )
        measure.emit([start])
        where = delay_links(hosts) or "undelayed link"
        measure.emit([time_round_trip(hosts, where)])


def time_ours(hosts: Hosts) -> float:
    pools: list[mgpu.Pool] = []
    elapsed_s = measure.seconds(lambda: pools.append(start_ours(hosts)))
    pools[0].shutdown()
    measure.step(f"started in {elapsed_s:.2f} s")
    return elapsed_s


def time_ipyparallel(hosts: Hosts) -> float:
    clusters: list[tuple[ipp.Cluster, ipp.Client]] = []
    elapsed_s = measure.seconds(lambda: clusters.append(start_ipyparallel(hosts)))
    stop_ipyparallel(*clusters[0])
    return elapsed_s


def time_round_trip(hosts: Hosts, where: str) -> measure.Row:
    with start_ours(hosts):
        ours_s = measure.median_of_many_s(lambda: mgpu.spmd(os.getpid).values)

    def peer() -> float:
        cluster, client = start_ipyparallel(hosts)
        try:
            return measure.median_of_many_s(lambda: client[:].apply_sync(os.getpid))
        finally:
            stop_ipyparallel(cluster, client)

    return measure.Row(
        f"spmd on 2 hosts, {where}",
        ours_s * 1000,
        "ms",
        "<= 1.2x",
        "",
        {"ipyparallel": (peer_s := measure.or_none(peer)) and peer_s * 1000},
    )


if __name__ == "__main__":
    main()
