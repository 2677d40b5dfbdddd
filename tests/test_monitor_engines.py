"""CPU and memory of the host and of engines, and what `snapshot()` makes of them."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from gpu_stubs import gpu, gpus

import jupyter_mgpu as mgpu
from jupyter_mgpu import host
from jupyter_mgpu.monitor import EngineProcess, take_snapshot
from jupyter_mgpu.monitor.engine_reading import EngineReader
from jupyter_mgpu.monitor.host_reading import HostReader
from notebooks import wait_until

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def spinning() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def test_an_engine_that_computes_is_told_from_one_that_waits():
    with spinning() as busy, subprocess.Popen(["sleep", "600"]) as idle:
        engines = [EngineProcess(busy.pid, "mine", 0), EngineProcess(idle.pid, "mine", 1)]
        try:
            # A tenth of a second may pass without its turn on a machine that has much to do.
            wait_until(lambda: take_snapshot(engines).engines[0].cpu_percent, 60, "its turn")
            taken = take_snapshot(engines)
        finally:
            busy.kill()
            idle.kill()

    first, second = taken.engines
    assert (first.pool, first.rank, first.pid) == ("mine", 0, busy.pid)
    assert first.cpu_percent is not None
    assert second.cpu_percent == 0
    assert first.rss_bytes > 2**20
    assert first.reasons == second.reasons == {}


def test_an_engine_that_has_ended_is_unknown_with_its_reason():
    reader = EngineReader()
    with subprocess.Popen(["sleep", "600"]) as process:
        engine = EngineProcess(process.pid, "mine", 0)
        (before,) = reader.read([engine])
        process.kill()
        process.wait()
        (after,) = reader.read([engine])

    assert before.rss_bytes > 0
    assert before.reasons == {"cpu_percent": "needs a second reading"}
    assert (after.cpu_percent, after.rss_bytes) == (None, None)
    assert set(after.reasons.values()) == {"the process has ended"}
    assert after.started == before.started


def test_a_zombie_has_ended():
    with subprocess.Popen(["sleep", "600"]) as process:
        engine = EngineProcess(process.pid, "mine", 0)
        process.kill()
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        (read,) = EngineReader().read([engine])

    assert set(read.reasons.values()) == {"the process has ended"}


def test_a_pid_that_never_existed_has_ended():
    (read,) = EngineReader().read([EngineProcess(2**22 + 1, "mine", 0)])

    assert read.rss_bytes is None


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="pids cannot be chosen here")
def test_another_process_with_the_pid_of_an_engine_is_not_taken_for_it():
    reader = EngineReader()
    with subprocess.Popen(["sleep", "600"]) as process:
        engine = EngineProcess(process.pid, "mine", 0)
        assert reader.read([engine])[0].rss_bytes > 0
        # The kernel tells start times in hundredths of a second.
        wait_until(lambda: age_s(process.pid) > 0.05)
        process.kill()
    other = start_with_pid(process.pid)
    try:
        (read,) = reader.read([engine])
    finally:
        other.kill()
        other.wait()

    assert read.rss_bytes is None
    assert set(read.reasons.values()) == {"the process has ended"}


def age_s(pid: int) -> float:
    # Both count from the same moment; psutil's times since 1970 may be a second off.
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s - int(ticks) / os.sysconf("SC_CLK_TCK")


def start_with_pid(pid: int) -> "subprocess.Popen[bytes]":
    for _ in range(100):
        try:
            LAST_PID.write_text(str(pid - 1))
        except OSError as error:
            pytest.skip(f"pids cannot be chosen here: {error}")
        process = subprocess.Popen(["sleep", "600"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    pytest.skip("somebody else takes the pids")


def test_the_host_is_read_within_the_limits_of_its_container(tmp_path, monkeypatch):
    (tmp_path / "own").write_text("0::/\n")
    files = {
        "cpu.max": "50000 100000",
        "memory.max": str(2**28),
        "memory.current": str(2**27),
        "cpu.stat": "usage_usec 0",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(host, "_CGROUP_ROOT", tmp_path)
    reader = HostReader()

    first = reader.read()
    (tmp_path / "cpu.stat").write_text(f"usage_usec {10**12}")
    second = reader.read()

    assert first.cpu_percent is None
    assert first.reasons == {"cpu_percent": "needs a second reading"}
    assert (first.memory_used_bytes, first.memory_total_bytes) == (2**27, 2**28)
    assert second.cpu_percent == 100  # of the quota, and never more


def test_a_snapshot_has_the_engines_of_the_open_pools(pool):
    taken = mgpu.snapshot()

    mine = [engine for engine in taken.engines if engine.pool == pool.name]
    assert [engine.rank for engine in mine] == list(pool.ranks)
    assert [engine.pid for engine in mine] == [engine.pid for engine in pool.engines]
    assert all(engine.rss_bytes > 2**20 for engine in mine)
    assert taken.engine(mine[0].pid) is mine[0]


def test_engines_do_not_sample_while_the_notebook_does(pool):
    def names_of_threads() -> list[str]:
        import threading

        return [thread.name for thread in threading.enumerate()]

    from jupyter_mgpu.monitor import Watch

    with Watch(0.5):
        names = pool.submit(names_of_threads).result(timeout=60)

    assert "mgpu-monitor" not in names


EXPORT = """
import jupyter_mgpu as mgpu
taken = mgpu.snapshot()
frame = taken.to_pandas()
result = [taken.to_csv(), taken.to_json(), repr(taken), list(frame["what"]), str(taken.gpus[0])]
"""


def test_a_snapshot_is_exported_and_shown(gpu_machine):
    scenario = f"{gpu(0, util=50, used=410, throttle=4)}\n{gpu(1)}\n{gpu(2, lost=1)}"
    machine = gpu_machine(f"{scenario}\nfail nvmlDeviceGetPowerUsage 3 1")

    text, document, shown, what, _ = machine.result(EXPORT)

    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["what"] for row in rows] == what == ["GPU 0", "GPU 1", "GPU 2", "host"]
    assert rows[0]["utilization_percent"] == "50"
    assert rows[0]["throttle"] == "power cap"
    assert rows[1]["power_watts"] == ""  # unknown, never 0
    taken = json.loads(document)
    assert taken["gpus"][1]["reasons"] == {"power_watts": "not supported"}
    lines = shown.splitlines()
    assert lines[1] == (
        "GPU 0 (NVIDIA H200): busy 50 %, memory 0.4 of 141.0 GiB, 120 W of 700 W, 40 C, "
        "slowed down: power cap"
    )
    assert "n/a of 700 W" in lines[2]
    assert lines[3].startswith("GPU 2 (n/a): lost")
    assert lines[4].startswith("host: CPU ")


def test_a_snapshot_is_written_to_files(gpu_machine, tmp_path):
    machine = gpu_machine(gpus(1))

    machine.python(
        f"import jupyter_mgpu as mgpu, os; os.chdir({str(tmp_path)!r})\n"
        "taken = mgpu.snapshot()\n"
        "taken.to_csv('now.csv'); taken.to_json('now.json')",
    )

    assert "GPU 0" in (tmp_path / "now.csv").read_text()
    assert json.loads((tmp_path / "now.json").read_text())["gpus"][0]["label"] == "GPU 0"
