"""What is known of GPUs, host and engines at one moment: frozen records with units.

None means unknown, never zero; `reasons` then says why.
"""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

GpuState = Literal["ok", "stale", "lost", "divided", "unusable"]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A process on a GPU, or an engine's hold on it.

    Attributes:
        words: Who it is, as messages say it.
        user: The name of the operating system's user.
        pool: The pool that holds the GPU for it.
    """

    words: str
    pid: int
    user: str | None = None
    pool: str | None = None
    rank: int | None = None
    memory_used_bytes: int | None = None
    is_this_notebook: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU or MIG instance.

    Attributes:
        label: `GPU 0`, or `GPU 0 MIG 1` for an instance.
        index: NVML's number; None for an instance.
        state: "ok"; "stale" if the driver does not answer; "lost" if it fell off the bus, with its
            last values; "divided" into MIG instances; "unusable", as without permission.
        age_s: Seconds since it answered last; None if it never did.
        utilization_percent: Share of the time in which at least one kernel ran. It does not say
            how much of the GPU these kernels used.
        memory_reserved_bytes: What the driver keeps for itself.
        throttle: Why it runs slower than it could, in words; empty if it does not.
        users: None where processes cannot be listed and no engine holds it.
        reasons: For each value that is None, why.
    """

    label: str
    index: int | None
    uuid: str | None
    name: str | None
    state: GpuState
    age_s: float | None = None
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    throttle: tuple[str, ...] | None = None
    users: tuple[GpuUse, ...] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostSample:
    """This machine, or the container's share of it.

    Attributes:
        cpu_percent: Share of all cores that was busy since the reading before, 0 to 100.
        memory_used_bytes: What cannot be had any more, without what is only cached.
    """

    cpu_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """The process of an engine that is to be watched."""

    pid: int
    pool: str
    rank: int


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The process of one engine.

    Attributes:
        started: When the process started, epoch seconds; a pid alone may be somebody else's later.
        cpu_percent: Share of one core since the reading before; 200 is two cores.
        rss_bytes: Its resident memory, pages shared with other processes included.
    """

    pid: int
    pool: str
    rank: int
    started: float | None = None
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment.

    Attributes:
        at: Epoch seconds.
        host: CPU and memory.
        gpus: In the driver's order, MIG instances behind their GPU.
        engines: The processes of the engines that were asked for.
        trouble: Why there is no GPU, or why their values are old; None if all is well.
        driver_version: Of the NVIDIA driver.
    """

    at: float
    host: HostSample
    gpus: tuple[GpuSample, ...] = ()
    engines: tuple[EngineSample, ...] = ()
    trouble: str | None = None
    driver_version: str | None = None

    def gpu(self, uuid: str) -> GpuSample | None:
        """Find a GPU or MIG instance by its UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def engine(self, pid: int) -> EngineSample | None:
        """Find an engine's process."""
        return next((engine for engine in self.engines if engine.pid == pid), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def to_pandas(self) -> Any:
        """Make a data frame: one row per GPU, then the host, then one per engine."""
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=list(_COLUMNS))

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the rows of `to_pandas` as CSV, and write them to a file if one is named."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows())
        return _write(text.getvalue(), path)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return `to_dict` as JSON, and write it to a file if one is named."""
        return _write(json.dumps(self.to_dict()), path)

    def _rows(self) -> list[dict[str, Any]]:
        rows = [_gpu_row(gpu) for gpu in self.gpus]
        rows.append({"what": "host", **_fields(self.host)})
        rows += [
            {"what": f"engine {engine.pool}:{engine.rank}", **_fields(engine)}
            for engine in self.engines
        ]
        return [{name: row.get(name) for name in _COLUMNS} | {"at": self.at} for row in rows]


_COLUMNS = (
    "at",
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


def _write(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
