"""Run every bench in a process of its own and write the table into README.md."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
TIMEOUT_S = 1800
PACKAGES = ("torch", "ipyparallel", "ray", "distributed", "loky", "ipykernel")


def run_bench(script: Path) -> list[dict[str, Any]]:
    """Return a bench's rows; an empty list when it failed, the reason on the terminal."""
    print(f"== {script.stem}", flush=True)
    try:
        ended = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"no end after {TIMEOUT_S} s", flush=True)
        return []
    rows = [
        json.loads(line.removeprefix("ROW "))
        for line in ended.stdout.splitlines()
        if line.startswith("ROW ")
    ]
    if ended.returncode:
        print(ended.stdout[-2000:], ended.stderr[-4000:], sep="\n", flush=True)
    for row in rows:
        print(line_of(row), flush=True)
    return rows


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
    ratios = ", ".join(f"{ours / value:.2f}x" for value in peers.values() if ours and value)
    cells = (row["bench"], number(ours, unit), beside, ratios, row["bar"], row["moonshot"])
    return "| " + " | ".join(cells) + " |"


def describe_machine() -> str:
    """Say where and when the table was measured."""
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
        f"{pages / 2**30:.0f} GiB of memory, load average {os.getloadavg()[0]:.1f} at the end, "
        f"Python {platform.python_version()}, {', '.join(versions)}."
    )


def write_table(rows: list[dict[str, Any]]) -> None:
    """Replace what stands between the markers in README.md."""
    readme = FOLDER / "README.md"
    head, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    table = [
        "| bench | ours | peers | ratio | bar | moonshot |",
        "|---|---|---|---|---|---|",
        *map(line_of, rows),
    ]
    text = "\n".join([BEGIN, "", describe_machine(), "", *table, "", END])
    readme.write_text(head + text + tail, encoding="utf-8")


def main() -> int:
    """Run as a program; arguments choose benches by name."""
    chosen = sys.argv[1:]
    scripts = [
        script
        for script in sorted(FOLDER.glob("bench_*.py"))
        if not chosen or script.stem.removeprefix("bench_") in chosen
    ]
    results = [run_bench(script) for script in scripts]
    if not chosen:
        write_table([row for rows in results for row in rows])
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
