"""Readings of other hosts: engines on this machine that their owner reaches by TCP alone.

See test_telemetry_ssh for hosts that can be cut off.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpu_stubs import GpuMachine, gpu, gpu_uuid
from host_duo import Duo, until

import jupyter_mgpu as mgpu
from jupyter_mgpu.monitor import (
    EngineSample,
    GpuSample,
    HostReading,
    HostSample,
    Snapshot,
    with_hosts,
)
from jupyter_mgpu.monitor.reporter import REST_S
from jupyter_mgpu.transport.placement import Order
from jupyter_mgpu.widgets.gpus_source import gpus_source
from jupyter_mgpu.widgets.pool_source import pool_source
from jupyter_mgpu.widgets.static import static_bundle
from notebooks import wait_until


def engines_of(duo: Duo, snapshot: Snapshot) -> list[EngineSample]:
    return [engine for engine in snapshot.engines if engine.pool == duo.pool.name]


def pids_on(snapshot: Snapshot, index: int) -> list[int | None]:
    found = snapshot.gpu(gpu_uuid(index), "hostb")
    return [use.pid for use in found.users or ()] if found is not None else []


def test_a_pool_of_this_machine_has_no_other_hosts() -> None:
    with mgpu.parpool(1, name="own") as pool:
        snapshot = mgpu.snapshot()

        assert snapshot.other_hosts == ()
        assert pool.owner.far_hosts() == []
        assert [e.rank for e in snapshot.engines if e.pool == "own"] == [0]


def test_a_snapshot_has_the_other_host_under_its_name(duo: Duo) -> None:
    def is_full(snapshot: Snapshot) -> bool:
        (host,) = snapshot.other_hosts
        return host.state == "ok" and host.age_s < 2 and len(engines_of(duo, snapshot)) == 3

    snapshot = until(is_full, "a full reading")

    (host,) = snapshot.other_hosts
    assert (host.name, host.state, host.trouble) == ("hostb", "ok", None)
    assert 0 < host.memory_used_bytes < host.memory_total_bytes
    first = snapshot.gpu(gpu_uuid(0), "hostb")
    assert (first.label, first.host, first.state) == ("GPU 0", "hostb", "ok")
    assert (first.utilization_percent, first.memory_used_bytes) == (37, 1000 * 2**20)
    assert [g.host for g in snapshot.gpus] == ["hostb", "hostb"]
    assert snapshot.host.name is None
    engines = {engine.rank: engine.pid for engine in duo.pool.engines}
    assert {(e.host, e.rank, e.pid) for e in engines_of(duo, snapshot)} == {
        (None, 0, engines[0]),
        ("hostb", 1, engines[1]),
        ("hostb", 2, engines[2]),
    }
    assert all(e.rss_bytes > 10 * 2**20 for e in engines_of(duo, snapshot))
    assert "GPU 0 (NVIDIA L40S) on hostb" in repr(snapshot)
    rows = snapshot.to_pandas()
    assert list(rows[rows.host == "hostb"].what)[:3] == ["GPU 0", "GPU 1", "host"]


def test_only_one_engine_of_a_host_reads_it_and_only_while_somebody_looks(duo: Duo) -> None:
    until(lambda s: s.other_hosts[0].state == "ok", "a reading")
    (sampler,) = duo.samplers()
    guard_of_rank_1 = psutil.Process(duo.pool.engines[1].pid).parent()

    assert sampler.parent() == guard_of_rank_1
    assert not {"MGPU_TOKEN", "MGPU_CURVE"} & set(sampler.environ())
    wait_until(lambda: not sampler.is_running(), 2 * REST_S + 30, "the sampler's end")
    assert duo.samplers() == []


def test_when_the_engine_that_reads_dies_the_next_one_takes_over(
    duo: Duo, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda s: s.other_hosts[0].state == "ok", "a reading")
    start, may_start = duo.launcher.start, threading.Event()

    async def start_later(order: Order) -> Any:
        while not may_start.is_set():
            await asyncio.sleep(0.01)
        return await start(order)

    monkeypatch.setattr(duo.launcher, "start", start_later)

    os.kill(duo.pool.engines[1].pid, signal.SIGKILL)

    def is_next() -> bool:
        (host,) = mgpu.snapshot().other_hosts
        guards = [sampler.parent() for sampler in duo.samplers()]
        return guards == [psutil.Process(duo.pool.engines[2].pid).parent()] and host.age_s < 1

    try:
        wait_until(is_next, 60, "the next sampler's reading")  # before the first engine is back
    finally:
        may_start.set()


def test_a_sampler_that_is_killed_is_started_again(duo: Duo) -> None:
    until(lambda s: s.other_hosts[0].state == "ok", "a reading")
    (sampler,) = duo.samplers()

    sampler.kill()

    wait_until(lambda: duo.samplers() not in ([], [sampler]), 60, "the next sampler")
    begun_s = time.monotonic()
    until(lambda s: s.other_hosts[0].age_s < time.monotonic() - begun_s - 0.1, "its reading")


def test_a_host_that_stops_reporting_turns_stale_with_its_age_and_comes_back(duo: Duo) -> None:
    until(lambda s: len(engines_of(duo, s)) == 3 and len(s.gpus) == 2, "a full reading")
    (sampler,) = duo.samplers()

    sampler.suspend()

    def is_stale(snapshot: Snapshot) -> bool:
        (host,) = snapshot.other_hosts
        assert host.state == "stale" or host.age_s < 3.2
        return host.state == "stale"

    first = until(is_stale, "a stale reading")
    assert first.other_hosts[0].age_s >= 3
    assert first.other_hosts[0].trouble == "hostb does not report any more."
    assert {(g.state, g.utilization_percent) for g in first.gpus} == {("stale", 37), ("stale", 0)}
    assert all(g.age_s >= 3 for g in first.gpus)
    assert [e.rss_bytes for e in first.engines if e.host] == [None, None]
    assert first.engine(duo.pool.engines[0].pid).rss_bytes > 0
    assert "hostb: stale" in repr(first)
    later = until(lambda s: s.other_hosts[0].age_s > 5, "an older reading")
    assert later.other_hosts[0].state == "stale"
    sampler.resume()
    until(lambda s: s.other_hosts[0].state == s.gpus[0].state == "ok", "new readings")


def test_a_driver_that_hangs_there_hangs_nothing(duo: Duo) -> None:
    until(lambda s: s.other_hosts[0].state == "ok", "a reading")

    duo.machine.add("hang nvmlDeviceGetUtilizationRates")

    def hangs(snapshot: Snapshot) -> bool:
        # Its CPU is read all the same.
        return snapshot.gpus[0].state == "stale" and snapshot.other_hosts[0].state == "ok"

    assert "hostb" in until(hangs, "a stale GPU").other_hosts[0].trouble
    assert mgpu.parfeval(lambda: 1).result(60) == 1


@pytest.mark.usefixtures("duo")
def test_readings_come_while_the_engine_holds_the_gil(tmp_path: Path) -> None:
    fifo = tmp_path / "until somebody writes"
    os.mkfifo(fifo)

    def hold() -> None:
        import ctypes

        ctypes.PyDLL(None).open(bytes(fifo), os.O_RDONLY)  # C code that does not let go of the GIL

    tasks = [mgpu.parfeval(hold) for _ in range(3)]
    wait_until(lambda: all(task.state == "running" for task in tasks), 60, "running tasks")
    begun_s = time.monotonic()

    def is_later(snapshot: Snapshot) -> bool:
        (host,) = snapshot.other_hosts
        return host.state == "ok" and host.age_s < time.monotonic() - begun_s - 2

    try:
        until(is_later, "a reading of two seconds later")
        assert {task.state for task in tasks} == {"running"}
    finally:
        with fifo.open("w"):
            for task in tasks:
                task.result(60)


def test_a_process_there_is_mapped_by_host_and_pid(duo: Duo) -> None:
    pid = duo.pool.engines[2].pid
    duo.machine.add(f"process 1 pid={pid} memory=512")

    snapshot = until(lambda s: pid in pids_on(s, 1), "the process on the second GPU")

    (use,) = snapshot.gpus[1].users
    assert (use.pool, use.rank, use.pid) == ("far", 2, pid)
    assert use.memory_used_bytes == 512 * 2**20


def test_readings_are_small(duo: Duo) -> None:
    until(lambda s: s.other_hosts[0].state == "ok", "a reading")
    before = json.dumps(duo.pool.owner.far_hosts())

    assert len(before) < 8000


def test_the_table_has_the_other_hosts_gpus(duo: Duo) -> None:
    pid = duo.pool.engines[1].pid
    duo.machine.add(f"process 0 pid={pid} memory=512")
    until(lambda s: pid in pids_on(s, 0), "the process on the first GPU")

    table = mgpu.gpu_table()

    assert [(row.host, row.label, row.state) for row in table] == [
        ("hostb", "GPU 0", "ok"),
        ("hostb", "GPU 1", "ok"),
    ]
    first = repr(table).splitlines()[1].split()
    assert first[:5] == ["hostb", "0", "NVIDIA", "L40S", "9.0"]
    assert f"pool 'far' rank 1 (user {table[0].users[0].user}, pid {pid})" in repr(table)
    assert "<th>host</th>" in table._repr_html_()
    assert list(table.to_pandas().pids) == [(pid,), ()]


@pytest.mark.usefixtures("duo")
def test_the_command_line_lists_the_other_hosts_gpus() -> None:
    until(lambda s: s.other_hosts[0].state == "ok" and len(s.gpus) == 2, "a reading")
    command = [sys.executable, "-m", "jupyter_mgpu.cli", "gpus"]

    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    asked = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)

    assert [line.split()[:2] for line in text.splitlines()[1:3]] == [["hostb", "0"], ["hostb", "1"]]
    shown = json.loads(asked.stdout)
    assert [host["name"] for host in shown["other_hosts"]] == ["hostb"]
    assert [(g["host"], g["utilization_percent"]) for g in shown["gpus"]] == [
        ("hostb", 37),
        ("hostb", 0),
    ]


@pytest.mark.usefixtures("looks_of_views")
def test_views_show_the_other_host_and_its_ranks(duo: Duo) -> None:
    gpus, pool = gpus_source(), pool_source(duo.pool)

    def is_read() -> bool:
        seen = gpus.state(100)
        histories = [gpu["utilization_history"]["values"] for gpu in seen["gpus"]]
        return len(histories) == 2 and all(37 in h or 0 in h for h in histories)

    wait_until(is_read, 60, "the GPUs of hostb")

    seen = gpus.state(100)
    assert [gpu["label"] for gpu in seen["gpus"]] == ["GPU 0 on hostb", "GPU 1 on hostb"]
    assert seen["gpus"][0]["utilization"] == {"value": 37, "reason": None}
    assert seen["trouble"] is None  # it is this machine that has no GPU
    (host,) = seen["hosts"]
    assert (host["name"], host["state"], host["trouble"]) == ("hostb", "ok", None)
    assert host["memory"]["used"] > 0
    engines = {engine["rank"]: engine for engine in pool.state(100)["engines"]}
    assert [engines[rank]["what"] for rank in range(3)] == ["cpu", "gpu", "gpu"]
    assert engines[1]["utilization"]["value"] == 37
    assert engines[1]["memory"]["used"] == 1000 * 2**20
    assert 37 in engines[1]["utilization_history"]["values"]
    text = static_bundle(seen)["text/plain"]
    assert "0 on hostb" in text
    assert "hostb: CPU" in text

    (sampler,) = duo.samplers()
    sampler.suspend()
    try:
        wait_until(lambda: gpus.state(100)["hosts"][0]["state"] == "stale", 60, "a stale host")
        stale = gpus.state(100)["gpus"][0]
        rank_1 = pool.state(100)["engines"][1]
    finally:
        sampler.resume()

    assert (stale["state"], stale["why"]) == ("stale", "hostb does not report any more.")
    assert rank_1["utilization"] == {"value": None, "reason": "hostb does not report any more."}


TWO_MACHINES = """
import json, sys
from far_pools import Loopback, far_pool
from host_duo import duo_plans
import jupyter_mgpu as mgpu
if __name__ == "__main__":
    with far_pool(duo_plans(Loopback(json.loads(sys.stdin.readline())))) as pool:
        snapshot = mgpu.snapshot()
        table = repr(mgpu.gpu_table())
        print(json.dumps({"gpus": [(g.host, g.uuid, g.utilization_percent) for g in snapshot.gpus],
                          "hosts": [h.name for h in snapshot.other_hosts], "table": table}))
"""


def test_equal_numbers_and_uuids_of_two_hosts_are_kept_apart(
    gpu_machine: Callable[[str], GpuMachine],
) -> None:
    here, there = gpu_machine(gpu(0, util=11)), gpu_machine(gpu(0, util=22))

    with here.start(TWO_MACHINES, PYTHONPATH=os.path.dirname(__file__)) as process:  # noqa: PTH120
        output, errors = process.communicate(f"{json.dumps(there)}\n", timeout=60)

    assert process.returncode == 0, errors
    told = json.loads(output.splitlines()[-1])
    assert told["gpus"] == [[None, gpu_uuid(0), 11], ["hostb", gpu_uuid(0), 22]]
    assert told["hosts"] == ["hostb"]
    lines = [line.split()[:3] for line in told["table"].splitlines()[1:3]]
    assert lines == [["this", "machine", "0"], ["hostb", "0", "NVIDIA"]]


def told(**values: Any) -> dict[str, Any]:
    """What a pool's owner tells of hostb."""
    snapshot = Snapshot(
        at=1.0,
        host=HostSample(50.0, 2**30, 2**34),
        gpus=(GpuSample("GPU 0", 0, "GPU-a", "NVIDIA H200", "ok", age_s=0.1),),
        engines=(EngineSample(77, "one", 0, rss_bytes=5),),
    )
    reading = json.loads(json.dumps(snapshot.to_dict()))
    known = {"name": "hostb", "reading": reading, "age_s": 0.5, "is_lost": False, "trouble": None}
    return {**known, **values}


def joined(*readings: dict[str, Any], after_s: float = 0.0) -> Snapshot:
    own = Snapshot(1.0, HostSample(1.0, 1, 2))
    parsed = [HostReading.from_dict(reading) for reading in readings]
    return with_hosts(own, parsed, time.monotonic() + after_s)


def test_two_pools_on_a_host_show_its_gpus_once_and_the_engines_of_both() -> None:
    other = told(age_s=2.0)
    other["reading"]["engines"][0] |= {"pid": 88, "pool": "two"}
    other["reading"]["gpus"][0]["utilization_percent"] = 99  # the older of the two

    snapshot = joined(told(), other)

    assert [gpu.utilization_percent for gpu in snapshot.gpus] == [None]
    assert [(e.pool, e.pid, e.host) for e in snapshot.engines] == [
        ("one", 77, "hostb"),
        ("two", 88, "hostb"),
    ]
    assert [host.name for host in snapshot.other_hosts] == ["hostb"]


def test_no_unknown_of_a_host_is_a_number() -> None:
    unread = joined(told(reading=None, age_s=None, trouble="No module named psutil"))
    (host,) = unread.other_hosts
    assert (host.state, host.cpu_percent, host.memory_used_bytes) == ("unread", None, None)
    assert host.reasons["cpu_percent"] == "No module named psutil"
    assert "CPU n/a" in repr(unread)

    lost = joined(told(is_lost=True), after_s=10)
    assert (lost.other_hosts[0].state, lost.gpus[0].state) == ("lost", "lost")
    assert (lost.gpus[0].age_s, lost.engines[0].rss_bytes) == (10.6, None)


def test_readings_of_other_versions_are_understood_or_said_to_differ() -> None:
    newer = told()
    newer["reading"]["gpus"][0]["fan_percent"] = 30
    strange = told()
    strange["reading"] = {"devices": []}

    assert joined(newer).gpus[0].label == "GPU 0"
    (host,) = joined(strange).other_hosts
    assert (host.state, host.trouble) == (
        "unread",
        "hostb has another version of jupyter_mgpu, whose readings differ",
    )
