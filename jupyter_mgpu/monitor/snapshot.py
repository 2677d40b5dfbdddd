"""Everything at one moment, and what it can be turned into."""

import csv
import io
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jupyter_mgpu.monitor.history_table import write
from jupyter_mgpu.monitor.records import EngineSample, GpuSample, HostSample
from jupyter_mgpu.monitor.words import engine_line, gpu_line, host_line


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot:
    """Everything at one moment.

    Attributes:
        at: Epoch seconds.
        host: CPU and memory of this machine.
        gpus: In the driver's order, MIG instances behind their GPU; this machine's first.
        engines: The processes of the engines that were asked for.
        trouble: Why this machine has no GPU, or why their values are old; None if all is well.
        driver_version: Of this machine's NVIDIA driver.
        other_hosts: CPU and memory of the other hosts with engines of this notebook's pools.
    """

    at: float
    host: HostSample
    gpus: tuple[GpuSample, ...] = ()
    engines: tuple[EngineSample, ...] = ()
    trouble: str | None = None
    driver_version: str | None = None
    other_hosts: tuple[HostSample, ...] = ()

    def __repr__(self) -> str:
        moment = datetime.fromtimestamp(self.at, UTC).astimezone()
        lines = [f"{moment:%Y-%m-%d %H:%M:%S}", *map(gpu_line, self.gpus)]
        lines += [host_line(host) for host in (self.host, *self.other_hosts)]
        lines += map(engine_line, self.engines)
        return "\n".join([*lines, self.trouble] if self.trouble else lines)

    def gpu(self, uuid: str, host: str | None = None) -> GpuSample | None:
        """Find a GPU or MIG instance by its UUID, on this machine or another host."""
        return next((gpu for gpu in self.gpus if (gpu.uuid, gpu.host) == (uuid, host)), None)

    def engine(self, pid: int, host: str | None = None) -> EngineSample | None:
        """Find an engine's process, on this machine or another host."""
        return next((one for one in self.engines if (one.pid, one.host) == (pid, host)), None)

    def other_host(self, name: str) -> HostSample | None:
        """Find another host by its name."""
        return next((host for host in self.other_hosts if host.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def to_pandas(self) -> Any:
        """Make a data frame: one row per GPU, then per host, then per engine."""
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=list(_COLUMNS))

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the rows of `to_pandas` as CSV, and write them to a file if one is named."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows())
        return write(text.getvalue(), path)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return `to_dict` as JSON, and write it to a file if one is named."""
        return write(json.dumps(self.to_dict()), path)

    def _rows(self) -> list[dict[str, Any]]:
        rows = [_gpu_row(gpu) for gpu in self.gpus]
        rows += [
            {**_fields(host), "what": "host", "name": None, "host": host.name}
            for host in (self.host, *self.other_hosts)
        ]
        rows += [
            {"what": f"engine {engine.pool}:{engine.rank}", **_fields(engine)}
            for engine in self.engines
        ]
        return [{name: row.get(name) for name in _COLUMNS} | {"at": self.at} for row in rows]


_COLUMNS = (
    "at",
    "host",
    "what",
    "state",
    "name",
    "uuid",
    "pool",
    "rank",
    "pid",
    "utilization_percent",
    "cpu_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "memory_reserved_bytes",
    "rss_bytes",
    "power_watts",
    "power_limit_watts",
    "temperature_celsius",
    "throttle",
    "users",
)


def _gpu_row(gpu: GpuSample) -> dict[str, Any]:
    return {
        "what": gpu.label,
        **_fields(gpu),
        "throttle": None if gpu.throttle is None else "; ".join(gpu.throttle),
        "users": None if gpu.users is None else "; ".join(use.words for use in gpu.users),
    }


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
