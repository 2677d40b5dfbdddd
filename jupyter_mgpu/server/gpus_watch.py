"""Follows the GPUs, the host and the engines' processes while somebody watches."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jupyter_mgpu.control import FoundPool
from jupyter_mgpu.monitor import EngineProcess, GpuSample, GpuUse, HostReading, Series, Watch
from jupyter_mgpu.server import gpu_rows
from jupyter_mgpu.server.document import Row

HISTORY = ("utilization", "memory_used", "power", "temperature")


class GpusWatch:
    """One watch of this process's sampler for all clients.

    Args:
        interval_s: Seconds between two samples.
        on_sample: Called, in the sampler's thread, with each new sample.
    """

    def __init__(self, interval_s: float, on_sample: Callable[[], None]) -> None:
        self._identity = gpu_rows.host_identity()
        self._engines: tuple[EngineProcess, ...] = ()
        self._hosts: tuple[HostReading, ...] = ()
        self._ids_by_pid: dict[int, str] = {}
        self._ids_by_kernel: dict[tuple[int, str], str] = {}
        self._ids_by_name: dict[str, str] = {}
        self._watch = Watch(
            interval_s,
            engines=lambda: self._engines,
            on_sample=lambda _: on_sample(),
            hosts=lambda: self._hosts,
        )

    def follow(self, pools: Iterable[FoundPool], hosts: Iterable[HostReading]) -> None:
        """Take note of the engines whose processes are wanted, and of what other hosts tell."""
        pools = list(pools)
        self._hosts = tuple(hosts)
        engines = [(pool, engine) for pool in pools for engine in pool.engines]
        self._engines = tuple(EngineProcess(e.pid, pool.id, e.rank) for pool, e in engines)
        self._ids_by_pid = {engine.pid: pool.id for pool, engine in engines}
        # An engine that does not use its GPU yet is known by its kernel and the pool's name there.
        self._ids_by_kernel = {(pool.kernel_pid, pool.name): pool.id for pool in pools}
        names = [pool.name for pool in pools]
        self._ids_by_name = {pool.name: pool.id for pool in pools if names.count(pool.name) == 1}

    def set_interval(self, interval_s: float) -> None:
        """Sample as often as the quickest client wants."""
        self._watch.interval_s = interval_s

    def sections(self) -> dict[str, Mapping[str, Row]]:
        """Return the sections `host`, `gpus` and `telemetry`; never waits for the driver."""
        snapshot = self._watch.snapshot()
        telemetry = {
            "trouble": snapshot.trouble,
            "driver": snapshot.driver_version,
            "interval_s": self._watch.interval_s,
        }
        return {
            "host": {
                "host": gpu_rows.host_row(snapshot.host, self._identity),
                **gpu_rows.other_host_rows(snapshot.other_hosts),
            },
            "gpus": gpu_rows.gpu_rows(snapshot, self._pool_of),
            "telemetry": {"gpus": telemetry},
        }

    def engine_cpu(self) -> dict[tuple[str | None, int], float | None]:
        """Return the share of a core that each engine takes, in percent, by its host and pid."""
        engines = self._watch.snapshot().engines
        return {(engine.host, engine.pid): engine.cpu_percent for engine in engines}

    def _pool_of(self, use: GpuUse, host: str | None) -> str | None:
        name = use.pool or ""
        by_process = None
        if host is None:  # a number of a process says something on its own host only
            pid = use.pid or 0
            by_process = self._ids_by_pid.get(pid) or self._ids_by_kernel.get((pid, name))
        return by_process or self._ids_by_name.get(name)

    def history(self, num_points: int, fields: Iterable[str] = HISTORY) -> dict[str, Any]:
        """Return the last values of each GPU, newest last, None where there was none."""
        gpus = [gpu for gpu in self._watch.snapshot().gpus if gpu.uuid]

        def series(gpu: GpuSample, field: str) -> list[float | None]:
            name = gpu_rows.FIELDS[field]
            return _short(self._watch.series(gpu.uuid or "", name, num_points, gpu.host))

        return {
            "step_s": self._watch.interval_s,
            "gpus": {
                gpu_rows.row_id(gpu): {field: series(gpu, field) for field in fields}
                for gpu in gpus
            },
        }

    def close(self) -> None:
        """Let the sampler end, if nobody else wants it."""
        self._watch.close()


def _short(series: Series) -> list[float | None]:
    """Write bytes and percents without `.0`: there may be tens of thousands."""
    return [
        value if value is None or not value.is_integer() else int(value) for value in series.values
    ]
