"""A server in a process of its own: its GPUs, a driver that hangs, other servers beside it."""

import json
import os
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from gpu_stubs import gpu, gpu_uuid, gpus
from server_processes import running_server

from jupyter_mgpu.server.app import MgpuExtension
from notebooks import notebook, wait_until

pytestmark = pytest.mark.usefixtures("own_runtime_folder")


def listening_ports(pid: int) -> set[str]:
    """The addresses on which a process accepts TCP connections."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(descriptor.readlink()))
        except OSError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1])
    return found


def test_every_gpu_is_shown_with_its_numbers_and_users(gpu_machine, tmp_path):
    machine = gpu_machine(
        "\n".join([gpu(0, util=37, used=2048, reserved=600, temperature=61), gpu(1), gpu(2)])
    )
    machine.add("fail nvmlDeviceGetTemperature 3 1")
    machine.add("fail nvmlDeviceGetTemperatureV 3 1")
    machine.add("fail nvmlDeviceGetComputeRunningProcesses 4 2")
    with machine.foreign_process(0) as pid, running_server(tmp_path, machine) as server:
        wait_until(lambda: server.sections()["gpus"], 60, "GPUs")
        sections = server.sections()

    rows = [sections["gpus"][gpu_uuid(index)] for index in range(3)]
    assert [row["order"] for row in rows] == [0, 1, 2]
    first = rows[0]
    assert (first["label"], first["state"], first["utilization"]) == ("GPU 0", "ok", 37)
    assert (first["memory_used"], first["memory_reserved"]) == (2048 * 2**20, 600 * 2**20)
    assert (first["temperature"], first["power_limit"]) == (61, 700)
    (user,) = first["users"]
    assert (user["pid"], user["pool"], user["ours"]) == (pid, None, False)
    assert rows[1]["temperature"] is None
    assert rows[1]["reasons"]["temperature"]
    assert rows[1]["users"] == []
    assert "users" not in rows[1]["reasons"]
    assert rows[2]["users"] == []
    assert "permission" in rows[2]["reasons"]["users"]
    assert sections["telemetry"]["gpus"]["trouble"] is None


def test_a_pool_on_gpus_is_named_on_them(gpu_machine, tmp_path):
    machine = gpu_machine(gpus(3))
    with notebook(dict(machine)) as nb, running_server(tmp_path, machine) as server:
        nb.check("%load_ext jupyter_mgpu\n%parpool 2 --gpus 1,2 --name train")

        def pool_id() -> str | None:
            ready = [i for i, row in server.sections()["pools"].items() if row["state"] == "ready"]
            return ready[0] if ready else None

        def is_named() -> bool:
            if not (rows := server.sections()["gpus"]):
                return False
            users = [[user["pool"] for user in rows[gpu_uuid(i)]["users"]] for i in (1, 2)]
            return users == [[pool_id()]] * 2

        wait_until(is_named, 60, "the pool on its GPUs")
        found = pool_id()
        sections = server.sections()

        assert sections["pools"][found]["code"] == "%parpool 2 --gpus 1,2 --name train"
        for rank, index in ((0, 1), (1, 2)):
            engine = sections["engines"][f"{found}/{rank}"]
            assert engine["gpus"] == [gpu_uuid(index)]
            assert engine["proven"] is True
            (user,) = sections["gpus"][gpu_uuid(index)]["users"]
            assert (user["pool"], user["rank"], user["ours"]) == (found, rank, True)
        assert sections["gpus"][gpu_uuid(0)]["users"] == []


def test_pools_of_one_name_are_told_apart_on_their_gpus(gpu_machine, tmp_path):
    machine = gpu_machine(gpus(3))
    with (
        notebook(dict(machine)) as one,
        notebook(dict(machine)) as other,
        running_server(tmp_path, machine) as server,
    ):
        for index, nb in enumerate((one, other)):
            nb.check(f"%load_ext jupyter_mgpu\n%parpool 1 --gpus {index}")

        def users() -> list[dict[str, Any]]:
            rows = server.sections()["gpus"]
            return [user for index in (0, 1) if rows for user in rows[gpu_uuid(index)]["users"]]

        def are_known() -> bool:
            return [user["pool"] is not None and user["ours"] for user in users()] == [True, True]

        wait_until(are_known, 60, "both")
        pools = server.sections()["pools"]
        assert [pools[user["pool"]]["kernel_pid"] for user in users()] == [one.pid, other.pid]


def test_a_driver_that_hangs_hangs_nothing_else(gpu_machine, tmp_path):
    machine = gpu_machine(gpus(2))
    with running_server(tmp_path, machine) as server:
        wait_until(lambda: server.sections()["gpus"], 60, "GPUs")
        followed = server.stream()
        machine.add("hang nvmlDeviceGetUtilizationRates")

        def states() -> set[str]:
            return {row["state"] for row in server.sections()["gpus"].values()}

        wait_until(lambda: states() == {"stale"}, 60, "stale GPUs")
        kinds = [json.loads(followed.recv())["type"] for _ in range(4)]
        assert kinds == ["hello", "snapshot", "delta", "delta"]
        assert all(row["stale_s"] >= 2 for row in server.sections()["gpus"].values())
        wait_until(lambda: server.sections()["telemetry"]["gpus"]["trouble"], 60, "words")

        assert server.end() == 0  # the thread in the driver is not waited for


def test_a_machine_without_a_driver_says_so(tmp_path):
    with running_server(tmp_path) as server:
        wait_until(lambda: server.sections()["telemetry"]["gpus"]["trouble"], 60, "words")
        telemetry = server.sections()["telemetry"]["gpus"]

    assert "no NVIDIA driver" in telemetry["trouble"]


def test_records_that_cannot_be_read_are_told_and_hide_no_gpus(gpu_machine, tmp_path):
    machine = gpu_machine(gpus(1))
    machine["JUPYTER_RUNTIME_DIR"] = str(tmp_path / "runtime")
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "jupyter_mgpu").write_text("in the way of the records")
    with running_server(tmp_path, machine) as server:
        wait_until(lambda: server.sections()["gpus"], 60, "GPUs")
        wait_until(lambda: server.sections()["telemetry"]["pools"]["trouble"], 60, "words")
        telemetry = server.sections()["telemetry"]

    assert "cannot be read" in telemetry["pools"]["trouble"]
    assert telemetry["gpus"]["trouble"] is None


def test_no_port_is_opened(tmp_path):
    with running_server(tmp_path) as server:
        before = listening_ports(server.process.pid)
        followed = server.stream()
        for _ in range(3):
            followed.recv()

        assert listening_ports(server.process.pid) == before
        assert len(before) == 1


def test_two_servers_show_one_users_pools_and_each_knows_its_own(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with (
        running_server(folders[0], base_url="/user/one%20a/") as first,
        running_server(folders[1], base_url="/user/two/") as second,
        notebook() as nb,
    ):
        nb.check("%load_ext jupyter_mgpu\n%parpool 1 --name shared")
        for server in (first, second):
            wait_until(lambda server=server: server.sections()["pools"], 60, "the pool")
            (row,) = server.sections()["pools"].values()
            assert (row["name"], row["here"]) == ("shared", False)

        (pool_id,) = first.sections()["pools"]
        assert second.request(f"jupyter-mgpu/pools/{pool_id}/stop", {})["ok"]
        wait_until(lambda: first.sections()["pools"] == {}, 60, "its end")


def test_another_users_pools_are_not_seen(tmp_path):
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    theirs = {**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime)}
    with running_server(tmp_path, theirs) as server, notebook() as nb:
        nb.check("%load_ext jupyter_mgpu\n%parpool 1 --name private")
        nb.check("from jupyter_mgpu import control")
        pool_id = nb.value("control.find_pools()[0].id")

        assert server.sections()["pools"] == {}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            server.request(f"jupyter-mgpu/pools/{pool_id}/stop", {})


def test_the_extension_is_enabled_by_the_file_that_is_installed():
    file = Path(__file__).parents[1] / "jupyter-config" / "server-config" / "jupyter_mgpu.json"
    import jupyter_mgpu

    enabled = json.loads(file.read_text())["ServerApp"]["jpserver_extensions"]

    assert enabled == {"jupyter_mgpu": True}
    (point,) = jupyter_mgpu._jupyter_server_extension_points()
    assert point == {"module": "jupyter_mgpu", "app": MgpuExtension}


def test_the_server_loads_neither_engines_nor_notebooks():
    heavy = {"torch", "ipyparallel", "IPython", "pandas", "anywidget"}
    code = f"import sys, jupyter_mgpu.server.app\nprint(*{heavy} & set(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == []
