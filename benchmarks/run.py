"""Run every bench in a process of its own and write the table into README.md."""

import collections
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import measure

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
TIMEOUT_S = 600
PACKAGES = ("torch", "ipyparallel", "ray", "distributed", "loky", "ipykernel")


def run_bench(script: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Run a bench; return the rows that it came to, and why there are no more of them."""
    start_s = time.monotonic()
    run_id = uuid.uuid4().hex
    # Bytecode is kept, as where a user installs: pip compiled the peers' modules, but not ours.
    environment = {**os.environ, measure.RUN: run_id}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    bench = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    timer = threading.Timer(TIMEOUT_S, lambda: measure.kill(measure.marked(measure.RUN, run_id)))
    timer.start()
    rows: list[dict[str, Any]] = []
    said: collections.deque[str] = collections.deque(maxlen=60)
    for line in bench.stdout or ():
        elapsed = f"{time.monotonic() - start_s:5.0f} s  "
        if line.startswith("ROW "):
            rows.append(json.loads(line.removeprefix("ROW ")))
            print(elapsed + line_of(rows[-1]), flush=True)
        elif line.startswith("STEP "):
            print(elapsed + line.removeprefix("STEP "), end="", flush=True)
        else:
            said.append(line)
    failed = bench.wait() != 0
    is_late = time.monotonic() - start_s > TIMEOUT_S
    timer.cancel()
    measure.kill(measure.marked(measure.RUN, run_id))
    if not failed:
        return rows, None
    print("".join(said), flush=True)
    return rows, f"no end after {TIMEOUT_S} s" if is_late else "it failed"


def number(value: float | None, unit: str) -> str:
    """Write a number with three digits, or that there is none."""
    if value is None:
        return "not measured"
    digits = f"{value:,.0f}" if abs(value) >= 100 or not unit else f"{value:.3g}"
    return f"{digits} {unit}".strip()


def line_of(row: dict[str, Any]) -> str:
    """Write one row of the table."""
    unit, ours, peers = row["unit"], row["ours"], row["peers"]
    beside = ", ".join(f"{name} {number(value, unit)}" for name, value in peers.items())
    ratios = ", ".join(
        f"{ours / value:.2f}x" if ours and value else "-" for value in peers.values()
    )
    cells = (row["bench"], number(ours, unit), beside, ratios, row["bar"], row["moonshot"])
    return "| " + " | ".join(cells) + " |"


def describe_machine() -> str:
    """Say where and when the table is measured."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} not installed")
    return (
        f"Measured on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}: "
        f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}), "
        f"{pages / 2**30:.0f} GiB of memory, load average {os.getloadavg()[0]:.1f} at the start, "
        f"Python {platform.python_version()}, {', '.join(versions)}."
    )


def write_table(machine: str, rows: list[dict[str, Any]], missing: list[str]) -> None:
    """Replace what stands between the markers in README.md."""
    readme = FOLDER / "README.md"
    head, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    table = [
        "| bench | ours | peers | ratio | bar | moonshot |",
        "|---|---|---|---|---|---|",
        *map(line_of, rows),
    ]
    notes = [f"Not complete: {'; '.join(missing)}.", ""] if missing else []
    text = "\n".join([BEGIN, "", machine, "", *table, "", *notes, END])
    readme.write_text(head + text + tail, encoding="utf-8")


def main() -> int:
    """Run as a program; arguments choose benches by name."""
    chosen = sys.argv[1:]
    names = [script.stem.removeprefix("bench_") for script in sorted(FOLDER.glob("bench_*.py"))]
    machine = describe_machine()
    start_s = time.monotonic()
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    for name in chosen or names:
        print(f"== {name}", flush=True)
        measured, fault = run_bench(FOLDER / f"bench_{name}.py")
        rows += measured
        if fault is not None:
            missing.append(f"{name} ({fault})")
        if not chosen:  # after each one: what was measured stays, however this run ends
            write_table(machine, rows, [*missing, *names[names.index(name) + 1 :]])
    print(f"== {time.monotonic() - start_s:.0f} s in all. Not complete: {missing or 'none'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
