"""What every bench uses: medians, memory of processes, a real kernel, rows of the table."""

import contextlib
import gc
import json
import os
import signal
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

RUN, PART = "MGPU_BENCH_RUN", "MGPU_BENCH_PART"
"""Variables that mark the processes of one bench, and those of one part of it."""

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        bench: What was measured.
        ours: Our median, None where it could not be measured.
        unit: Of our number and the peers' numbers.
        peers: Each peer's median; the ratio is taken to the first. None: not measured.
        bar: What we promise.
        moonshot: What we aim at.
    """

    bench: str
    ours: float | None
    unit: str
    bar: str
    moonshot: str
    peers: dict[str, float | None] = field(default_factory=dict)


def emit(rows: Iterable[Row]) -> None:
    """Print rows for `run.py`, one JSON line each, as soon as they are measured."""
    for row in rows:
        print("ROW " + json.dumps(asdict(row)), flush=True)


def seconds(call: Callable[[], Any]) -> float:
    """Time one call."""
    gc.collect()
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def median_of_many_s(call: Callable[[], Any], calls: int = 200, rounds: int = REPEATS) -> float:
    """Return the median over rounds of the median time of one short call."""
    call()
    return statistics.median(
        statistics.median(seconds_bare(call) for _ in range(calls)) for _ in range(rounds)
    )


def seconds_bare(call: Callable[[], Any]) -> float:
    """Time one short call without collecting garbage first."""
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def or_none(measure: Callable[[], float]) -> float | None:
    """Return a peer's number, or None and the reason on the terminal."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - a peer that fails is reported as not measured
        step(f"not measured: {type(error).__name__}: {error}")
        return None


def step(text: str) -> None:
    """Say how far the bench is; `run.py` shows it."""
    print("STEP " + text, flush=True)


@contextlib.contextmanager
def watched() -> Iterator[Callable[[], list[int]]]:
    """Give a function that lists the processes started inside, however they were started."""
    mark = uuid.uuid4().hex
    os.environ[PART] = mark
    try:
        yield lambda: marked(PART, mark)
    finally:
        del os.environ[PART]


def marked(name: str, value: str) -> list[int]:
    """List the processes that were started with an environment variable."""
    needle = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def pss_mb(pids: list[int]) -> float:
    """Return the memory of processes together, shared pages counted once, in MB (10**6)."""
    total_kib = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Pss:"):
                    total_kib += int(line.split()[1])
    return total_kib * 1024 / 1e6


def kill(pids: list[int]) -> None:
    """End what is left of the processes, so that one round does not disturb the next."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Notebook:
    """A real kernel, driven as a front end drives it."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def __enter__(self) -> "Notebook":
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()

    def begin(self, source: str) -> str:
        """Start a cell and return its id."""
        return self.client.execute(source)

    def end(self, cell: str, timeout_s: float = 120) -> dict[str, Any]:
        """Wait for a cell and return its reply."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            reply = self.client.get_shell_msg(timeout=max(0.1, deadline_s - time.monotonic()))
            if reply["parent_header"].get("msg_id") == cell:
                return reply["content"]

    def run(self, source: str, timeout_s: float = 120) -> str:
        """Run a cell and return what it printed.

        Raises:
            RuntimeError: If the cell failed.
        """
        self.drain()
        cell = self.begin(source)
        content = self.end(cell, timeout_s)
        if content["status"] != "ok":
            raise RuntimeError("\n".join(content["traceback"]))
        printed = []
        while True:
            message = self.client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])
            if message["content"].get("execution_state") == "idle":
                return "".join(printed)

    def wait_for_path(self, path: Path, timeout_s: float = 60) -> None:
        """Wait until a cell has made a file."""
        deadline_s = time.monotonic() + timeout_s
        while not path.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{path.name} was not made within {timeout_s:g} s.")
            time.sleep(0.005)

    def drain(self) -> None:
        """Forget the messages that are waiting."""
        while self.client.iopub_channel.msg_ready():
            self.client.get_iopub_msg(timeout=1)

    def interrupt(self) -> None:
        """Press Stop."""
        self.manager.interrupt_kernel()
