"""One trivial call, there and back, beside four other projects."""

import os

import measure

NUM_ENGINES = 2


def nothing() -> None:
    return None


def ours_s() -> float:
    import jupyter_mgpu as mgpu

    with mgpu.parpool(NUM_ENGINES) as pool:
        return measure.median_of_many_s(lambda: mgpu.parfeval(nothing, pool=pool).result())


def ipyparallel_s() -> float:
    import ipyparallel as ipp

    with ipp.Cluster(n=NUM_ENGINES, log_level=40) as client:
        view = client.load_balanced_view()
        return measure.median_of_many_s(lambda: view.apply_sync(nothing))


def ray_s() -> float:
    os.environ.update(measure.RAY_ENVIRONMENT)
    import ray

    ray.init(num_cpus=NUM_ENGINES, include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(nothing)
        return measure.median_of_many_s(lambda: ray.get(remote.remote()))
    finally:
        ray.shutdown()


def dask_s() -> float:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=NUM_ENGINES, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        return measure.median_of_many_s(lambda: client.submit(nothing, pure=False).result())


def loky_s() -> float:
    from loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=NUM_ENGINES, timeout=None)
    try:
        return measure.median_of_many_s(lambda: executor.submit(nothing).result())
    finally:
        executor.shutdown(wait=True, kill_workers=True)


def main() -> list[measure.Row]:
    peers = {
        "ipyparallel": ipyparallel_s,
        "Ray": ray_s,
        "dask": dask_s,
        "loky": loky_s,
    }
    ours_ms = ours_s() * 1e3
    measure.step(f"ours: {ours_ms:.2f} ms")
    medians = {}
    for name, measured in peers.items():
        medians[name] = measure.or_none(measured)
        measure.step(f"{name}: {(medians[name] or 0) * 1e3:.2f} ms")
    return [
        measure.Row(
            "parfeval round trip",
            ours_ms,
            "ms",
            "<= 0.5x ipyparallel",
            "<= 1.0x loky",
            {name: value and value * 1e3 for name, value in medians.items()},
        )
    ]


if __name__ == "__main__":
    measure.emit(main())
