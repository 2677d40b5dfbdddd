"""One trivial call, there and back, beside four other projects."""

import measure
import peers

NUM_ENGINES = 2


def nothing() -> None:
    return None


def ours_s() -> float:
    import jupyter_mgpu as mgpu

    with mgpu.parpool(NUM_ENGINES) as pool:
        return measure.median_of_many_s(lambda: mgpu.parfeval(nothing, pool=pool).result())


def ipyparallel_s() -> float:
    with peers.ipyparallel_client(NUM_ENGINES) as client:
        view = client.load_balanced_view()
        return measure.median_of_many_s(lambda: view.apply_sync(nothing))


def ray_s() -> float:
    with peers.ray_session(NUM_ENGINES) as ray:
        remote = ray.remote(nothing)
        return measure.median_of_many_s(lambda: ray.get(remote.remote()))


def dask_s() -> float:
    with peers.dask_client(NUM_ENGINES) as client:
        return measure.median_of_many_s(lambda: client.submit(nothing, pure=False).result())


def loky_s() -> float:
    with peers.loky_executor(NUM_ENGINES) as executor:
        return measure.median_of_many_s(lambda: executor.submit(nothing).result())


def main() -> list[measure.Row]:
    beside = {
        "ipyparallel": ipyparallel_s,
        "Ray": ray_s,
        "dask": dask_s,
        "loky": loky_s,
    }
    ours_ms = ours_s() * 1e3
    measure.step(f"ours: {ours_ms:.2f} ms")
    medians = {}
    for name, measured in beside.items():
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
