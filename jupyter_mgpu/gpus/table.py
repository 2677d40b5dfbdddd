"""The devices with who uses them, as text, as HTML, as a data frame."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from jupyter_mgpu.devices import Device
from jupyter_mgpu.errors import LeaseError
from jupyter_mgpu.gpus.pinning import read_mask
from jupyter_mgpu.gpus.usage import GpuUser, Usage, read_usages
from jupyter_mgpu.leases import Lease, LeaseBook
from jupyter_mgpu.nvml import Inventory, UnusableGpu, read_inventory

BYTES_PER_GIB = 2**30
UNKNOWN = "n/a"
THIS_MACHINE = "this machine"
_HEADINGS = ("GPU", "name", "compute", "memory (GiB)", "busy", "used by", "UUID")


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU or MIG instance. None means unknown.

    Attributes:
        label: `GPU 0`, or `GPU 0 MIG 1` for an instance.
        state: "ok", "lost", "divided" (into MIG instances), "stale" with its age if its host does
            not report any more, or why it cannot be used.
        users: The processes and leases on it.
        reasons: For each value that is None, why.
        host: The other host that it is in; None for this machine.
    """

    label: str
    index: int | None
    uuid: str | None
    name: str | None
    state: str
    compute_capability: tuple[int, int] | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_percent: int | None = None
    users: tuple[GpuUser, ...] = ()
    holders: tuple[str, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()
    host: str | None = None


@dataclass(frozen=True, slots=True)
class GpuTable(Sequence[GpuRow]):
    """The devices of this machine, and of a pool's other hosts, at one moment.

    Attributes:
        message: Why there are none, or why some are old or unknown.
    """

    rows: tuple[GpuRow, ...]
    message: str | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> GpuRow: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[GpuRow, ...]: ...
    def __getitem__(self, place: int | slice) -> GpuRow | tuple[GpuRow, ...]:
        return self.rows[place]

    def __iter__(self) -> Iterator[GpuRow]:
        return iter(self.rows)

    def __repr__(self) -> str:
        if not self.rows:
            return self.message or "No GPU."
        lines = [self._headings, *(self._cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )
        return f"{text}\n{self.message}" if self.message else text

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{html.escape(repr(self))}</p>"
        head = "".join(f"<th>{html.escape(heading)}</th>" for heading in self._headings)
        body = "".join(f"<tr>{_html_cells(row, self._cells(row))}</tr>" for row in self.rows)
        note = f"<p>{html.escape(self.message)}</p>" if self.message else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    @property
    def _names_hosts(self) -> bool:
        return any(row.host is not None for row in self.rows)

    @property
    def _headings(self) -> tuple[str, ...]:
        return ("host", *_HEADINGS) if self._names_hosts else _HEADINGS

    def _cells(self, row: GpuRow) -> tuple[str, ...]:
        return (row.host or THIS_MACHINE, *_cells(row)) if self._names_hosts else _cells(row)

    def to_pandas(self) -> Any:
        """Make a data frame, one row per device, unknown values as missing ones."""
        import pandas as pd

        return pd.DataFrame([_record(row) for row in self.rows])


def gpu_table() -> GpuTable:
    """List the GPUs of this machine with who uses them. Creates no CUDA context, never raises."""
    inventory = read_inventory()
    leases, note = _leases() if inventory.devices else ([], None)
    usages = {usage.device: usage for usage in read_usages(inventory.devices, leases)}
    rows = [_row(device, usages[device]) for device in _nested(inventory)]
    rows += [_unusable_row(gpu) for gpu in inventory.unusable]
    rows.sort(key=lambda row: int(row.label.split()[1]))
    message = str(inventory.trouble) if inventory.trouble is not None else note
    return GpuTable(tuple(rows), message)


def gpu_count(which: Literal["all", "available"] = "all") -> int:
    """Count the GPUs: "all" that can be used here, or those "available" to a new pool now.

    Both respect CUDA_VISIBLE_DEVICES and count MIG instances in the place of a divided GPU.
    """
    if which not in ("all", "available"):
        raise ValueError(f'gpu_count("{which}") is unknown. Use "all" or "available".')
    devices = read_mask(read_inventory()).devices
    if which == "all":
        return len(devices)
    return sum(not usage.holders for usage in read_usages(devices, _leases()[0]))


def _leases() -> tuple[list[Lease], str | None]:
    try:
        return LeaseBook().live(), None
    except (LeaseError, OSError) as error:
        return [], str(error)


def _nested(inventory: Inventory) -> Iterator[Device]:
    for gpu in inventory.gpus:
        yield gpu
        yield from (i for i in inventory.instances if i.mig and i.mig.parent_uuid == gpu.uuid)


def _row(device: Device, usage: Usage) -> GpuRow:
    reading = usage.reading
    return GpuRow(
        label=device.label,
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        state="lost" if reading.is_lost else "divided" if device.is_divided else "ok",
        compute_capability=device.compute_capability,
        memory_used_bytes=reading.memory_used_bytes,
        memory_total_bytes=reading.memory_total_bytes or device.memory_total_bytes,
        utilization_percent=reading.utilization_percent,
        users=() if device.is_divided else usage.users,
        holders=() if device.is_divided else tuple(usage.holders),
        reasons=tuple(reading.reasons.items()),
    )


def _unusable_row(gpu: UnusableGpu) -> GpuRow:
    return GpuRow(
        label=f"GPU {gpu.index}",
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        state="lost" if gpu.is_lost else gpu.reason,
    )


def _cells(row: GpuRow) -> tuple[str, ...]:
    compute = ".".join(map(str, row.compute_capability)) if row.compute_capability else UNKNOWN
    busy = UNKNOWN if row.utilization_percent is None else f"{row.utilization_percent} %"
    return (
        row.label.removeprefix("GPU "),
        row.name or UNKNOWN,
        compute,
        _memory(row),
        busy if row.state in ("ok", "divided") else row.state,
        _users(row),
        row.uuid or UNKNOWN,
    )


def _memory(row: GpuRow) -> str:
    used, total = (
        UNKNOWN if value is None else f"{value / BYTES_PER_GIB:.1f}"
        for value in (row.memory_used_bytes, row.memory_total_bytes)
    )
    return UNKNOWN if used == total == UNKNOWN else f"{used} / {total}"


def _users(row: GpuRow) -> str:
    if row.state not in ("ok", "divided"):
        return UNKNOWN
    if row.state == "divided":
        return "its MIG instances"
    unnamed = [] if row.users else row.holders
    names = list(dict.fromkeys([*map(_name, row.users), *unnamed]))
    if not names and "processes" in dict(row.reasons):
        return UNKNOWN
    return "; ".join(names) or "nobody"


def _name(user: GpuUser) -> str:
    if user.lease is None or user.name is None:
        return str(user)
    lease = user.lease
    return f"pool '{lease.pool}' rank {lease.rank} (pid {user.pid}, user {lease.user})"


def _html_cells(row: GpuRow, cells: tuple[str, ...]) -> str:
    # The reasons why values are unknown stand in the tool tip.
    why = "; ".join(f"{name}: {reason}" for name, reason in row.reasons)
    title = f' title="{html.escape(why)}"' if why else ""
    return "".join(f"<td{title}>{html.escape(cell)}</td>" for cell in cells)


def _record(row: GpuRow) -> dict[str, Any]:
    return {
        "host": row.host,
        "gpu": row.label,
        "index": row.index,
        "name": row.name,
        "uuid": row.uuid,
        "state": row.state,
        "compute_capability": ".".join(map(str, row.compute_capability or ())) or None,
        "memory_used_bytes": row.memory_used_bytes,
        "memory_total_bytes": row.memory_total_bytes,
        "utilization_percent": row.utilization_percent,
        "used_by": "; ".join(map(_name, row.users)) or None,
        "pids": tuple(user.pid for user in row.users),
    }
