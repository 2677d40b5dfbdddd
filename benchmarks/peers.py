"""The other projects, started as they come, each for the time of a `with` block."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def ipyparallel_client(num_engines: int) -> Iterator[Any]:
    """Give a client of ipyparallel's."""
    import ipyparallel as ipp

    with ipp.Cluster(n=num_engines, log_level=40) as client:
        yield client


@contextlib.contextmanager
def ray_session(num_engines: int, **settings: Any) -> Iterator[Any]:
    """Give the ray module, with its runtime up."""
    # No token file in the home folder and no usage report.
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    import ray

    ray.init(num_cpus=num_engines, include_dashboard=False, log_to_driver=False, **settings)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def dask_client(num_engines: int) -> Iterator[Any]:
    """Give a client of dask's, with one worker process per engine of ours."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=num_engines, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextlib.contextmanager
def loky_executor(num_engines: int) -> Iterator[Any]:
    """Give loky's executor."""
    from loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=num_engines, timeout=None)
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, kill_workers=True)
