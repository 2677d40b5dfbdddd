"""The life of a pool: start, sizes, values on its engines, end."""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq

from jupyter_mgpu.errors import (
    EngineDiedError,
    MgpuError,
    OwnerError,
    PoolClosedError,
    PoolStartError,
    SelectionError,
)
from jupyter_mgpu.owner import endpoint, records
from jupyter_mgpu.owner.owner_loop import OwnerLoop
from jupyter_mgpu.owner.plans import PoolPlan
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.rendezvous import Rendezvous
from jupyter_mgpu.start import current_pool, parpool, pool_named
from jupyter_mgpu.transport import cluster
from notebooks import Notebook, is_alive, wait_for_file, wait_until


def processes_of(pool: Pool) -> list[int]:
    listed = [engine.pid for engine in pool.engines] + [pool.owner.cluster.controller_pid]
    return [pid for pid in listed if pid]


def processes_below(folder: Path) -> list[int]:
    """The processes that know a pool's folder from its owner: its engines and their watchdogs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def test_a_pool_ends_with_its_with_block_and_leaves_nothing() -> None:
    with parpool(1, name="short") as pool:
        future = pool.submit(time.sleep, 0.3)
        pids, folder, record = processes_of(pool), pool.owner.plan.folder, pool.owner.record_path
        assert "n/a" not in repr(pool)  # the first look tells all that is known
        assert record.exists()

    assert future.done()
    assert not any(map(is_alive, pids))
    assert not folder.exists()
    assert not record.exists()
    pool.shutdown()
    with pytest.raises(PoolClosedError, match="has ended"):
        pool.submit(os.getpid)


def test_a_pool_ends_within_five_seconds_whatever_its_engines_do() -> None:
    pool = parpool(3, name="stuck")
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile 1: pass"
    pool.submit_task(exec, (deaf,), rank=0)
    pool.submit_task(time.sleep, (999,), rank=1)
    os.kill(pool.engines[2].pid, signal.SIGSTOP)
    pids = processes_of(pool)
    begun = time.monotonic()

    pool.shutdown(wait_for_tasks=False)

    assert time.monotonic() - begun < 5
    assert not any(map(is_alive, pids))


def test_stopping_during_a_respawn_leaves_nothing() -> None:
    pool = parpool(1, name="respawn")
    assert processes_below(pool.owner.plan.folder)
    os.kill(pool.engines[0].pid, signal.SIGKILL)
    wait_until(lambda: pool.engines[0].starts == 1 and pool.engines[0].pid, 60, "a new start")

    (new,) = [engine.pid for engine in pool.engines]

    pool.shutdown(wait_for_tasks=False)

    assert not is_alive(new)
    assert not pool.owner.plan.folder.exists()
    wait_until(lambda: not processes_below(pool.owner.plan.folder), 60, "the end of its watchdogs")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_ends_whole_though_a_step_of_its_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set(threading.enumerate())
    pool = parpool(1, name="whole")
    plan, pids, socket = pool.owner.plan, processes_of(pool), Path(pool.owner.plan.folder, "s")
    assert str(socket) in Path("/proc/net/unix").read_text()

    def fail() -> None:
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(plan.rendezvous, "close", fail)
    pool.shutdown()

    assert not any(map(is_alive, pids))
    assert str(socket) not in Path("/proc/net/unix").read_text()
    assert not plan.folder.exists()
    assert not pool.owner.record_path.exists()
    monkeypatch.undo()
    plan.rendezvous.close()
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)  # the owner's ends with the error, which belongs to this test


def test_only_this_user_may_reach_a_pool(pool: Pool) -> None:
    folder = pool.owner.plan.folder
    assert pool.client.ids == [0, 1]

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(pool.owner.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(pool.owner.record_path.stat().st_mode) == 0o600
    listeners = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True, check=False).stdout
    ours = [
        line
        for line in listeners.splitlines()
        if any(f"pid={p}," in line for p in processes_of(pool))
    ]
    assert ours
    assert all("127.0.0.1:" in line for line in ours)


def test_a_stranger_on_the_socket_is_not_heard(pool: Pool) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.identity = b"work:9.0"
    stranger.linger = 0
    stranger.connect(f"ipc://{pool.owner.plan.folder}/s")
    stranger.send_multipart([b'{"op":"done","task":"t1","status":"ok"}'])
    stranger.send_multipart([b'{"op":"hello","token":"guess"}'])
    stranger.send_multipart([b"\xff not json"])

    assert pool.submit(os.getpid).result(60)
    assert not stranger.poll(100)
    stranger.close()
    context.term()


def test_the_owner_answers_on_its_socket(pool: Pool) -> None:
    (record,) = [r for r in records.read_all() if r["name"] == "tests"]
    path = record["socket"]

    status = endpoint.ask(path, "status")
    assert [engine["rank"] for engine in status["engines"]] == [0, 1]
    future = pool.submit_task(time.sleep, (60,), name="asked")
    wait_until(future.running)
    (task,) = [t for t in endpoint.ask(path, "tasks") if t["name"] == "asked"]
    endpoint.ask(path, "cancel", task=task["id"])
    wait_until(future.cancelled)
    assert isinstance(endpoint.ask(path, "log", rank=0), str)
    with pytest.raises(OwnerError, match="the owner knows: cancel, diary, interrupt"):
        endpoint.ask(path, "dance")
    with pytest.raises(OwnerError, match="did not answer"):
        endpoint.ask("/nonexistent/owner.sock", "status")


def test_a_pool_ends_without_a_word_while_somebody_is_connected_to_its_socket() -> None:
    program = (
        "import socket, jupyter_mgpu as mgpu\n"
        "pool = mgpu.parpool(1)\n"
        "asker = socket.socket(socket.AF_UNIX)\n"
        "asker.connect(str(pool.owner.socket))\n"
        'asker.sendall(b\'{"op": "status"}\\n\')\n'
        "assert b'value' in asker.recv(10_000)\n"
        "pool.shutdown()\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")


OWNER_PROGRAM = """
import sys, tempfile
from pathlib import Path
from jupyter_mgpu import packing
from jupyter_mgpu.owner.owner import Owner
from jupyter_mgpu.owner.plans import EnginePlan, PoolPlan
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.rendezvous import Rendezvous

plan = PoolPlan("elsewhere", (EnginePlan(0, "CPU", "cpu", {}),),
                Path(tempfile.mkdtemp(prefix="mgpu-")), Rendezvous())
results = []
owner = Owner(plan, lambda header, frames: results.append((header, frames)))
owner.start().result(60)
owner.submit(Task("t1", "six", {"kind": "call"}, packing.pack((pow, (6, 1), {}))))
print(owner.socket, flush=True)
owner.wait()
(done,) = [(h, f) for h, f in results if h["op"] == "done"]
print(packing.unpack(done[1]), flush=True)
"""


def test_the_owner_runs_in_a_process_of_its_own_alike() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER_PROGRAM], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    path = process.stdout.readline().strip()
    wait_until(lambda: endpoint.ask(path, "status")["engines"][0]["state"] == "idle")

    endpoint.ask(path, "stop")

    assert process.stdout.readline().strip() == "6"
    assert process.wait(60) == 0


def test_a_dead_pools_record_is_removed() -> None:
    path = records.folder() / "dead.json"
    records.write(path, {"name": "dead", "pid": 2**22 - 1, "start_time": "1", "socket": ""})

    assert all(record["name"] != "dead" for record in records.read_all())
    assert not path.exists()


def test_asking_again_gives_the_same_pool_and_more_engines_are_added() -> None:
    with parpool(1, name="grow") as pool:
        pool["x"] = 7
        before = pool.engines[0].pid

        assert parpool(1, name="grow") is pool
        assert parpool(2, name="grow") is pool

        assert pool.size == 2
        assert pool.engines[0].pid == before
        assert pool["x"][0] == 7
        sizes = [
            f.result(60)
            for f in [
                pool.submit_task(lambda: int(os.environ["WORLD_SIZE"]), rank=r) for r in pool.ranks
            ]
        ]
        assert sizes == [2, 2]
        pool.scatter("y", [1, 2])
        with pytest.raises(SelectionError, match="rank 1 has y"):
            parpool(1, name="grow")
        del pool["y"]
        del pool["x"]
        assert parpool(1, name="grow").size == 1


def test_restart_gives_new_engines(pool: Pool) -> None:
    before = [engine.pid for engine in pool.engines]

    pool.restart([1])

    wait_until(lambda: pool.engines[1].pid not in (None, before[1]), 60, "a new engine")
    wait_until(lambda: pool.engines[1].state == "idle", 60, "a ready engine")
    assert pool.engines[0].pid == before[0]
    with pytest.raises(ValueError, match="Rank 5 was named"):
        pool.restart([5])


def test_what_is_submitted_right_after_a_restart_waits_for_the_new_engines(pool: Pool) -> None:
    before = {engine.pid for engine in pool.engines}

    pool.restart()

    found = [pool.submit_task(os.getpid, rank=rank).result(60) for rank in pool.ranks]
    assert before.isdisjoint(found)


def test_values_live_on_the_engines(pool: Pool) -> None:
    pool["x"] = [1, 2]
    pool.scatter("y", ["left", "right"])

    assert pool["x"][1] == [1, 2]
    assert list(pool["y"]) == ["left", "right"]
    assert repr(pool["x"]).splitlines()[0] == "Composite 'x'"
    assert "rank 1" in repr(pool["y"])
    with pytest.raises(KeyError, match="Rank 0 has no variable 'nothing'"):
        pool["nothing"][0]
    with pytest.raises(IndexError, match="Rank 2 was asked for"):
        pool["x"][2]
    with pytest.raises(TypeError, match="indexed by the name of a variable"):
        pool[0]
    with pytest.raises(ValueError, match="1 values were given"):
        pool.scatter("z", [1])
    del pool["x"]
    del pool["y"]
    with pytest.raises(KeyError):
        pool["x"][0]


def test_a_composite_shows_itself_while_its_engine_is_busy(pool: Pool, tmp_path: Path) -> None:
    import numpy as np

    go = tmp_path / "go"
    pool["grid"] = np.zeros((3, 4), "float32")
    busy = [pool.submit_task(wait_for_file, (go,), rank=rank) for rank in pool.ranks]
    wait_until(lambda: all(future.running() for future in busy))

    text = repr(pool["grid"])

    assert not any(future.done() for future in busy)
    go.touch()
    concurrent.futures.wait(busy, 20)
    assert "ndarray" in text
    assert "float32" in text
    del pool["grid"]


def test_an_engine_that_exits_at_its_start_fails_the_pool_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'MGPU_RANK' in os.environ:\n"
        "    sys.stderr.write('no licence found\\n'); sys.stderr.flush(); os._exit(7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(PoolStartError, match=r"(?s)exited with code 7.*no licence found"):
        parpool(1, name="broken")

    with pytest.raises(Exception, match="open pools are"):
        pool_named("broken")


def test_a_pool_that_cannot_listen_gives_its_port_back(tmp_path: Path) -> None:
    plan = PoolPlan("nowhere", (), tmp_path / ("x" * 108), Rendezvous())  # for a socket
    owner = OwnerLoop(plan, lambda *_event: None)

    owner.run()

    with pytest.raises(zmq.ZMQError, match="longer than"):
        owner.ready.result(0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", plan.rendezvous.port))


def test_without_any_engine_a_task_ends_at_once_until_a_restart_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        f"if 'MGPU_RANK' in os.environ and os.path.exists({str(broken)!r}):\n"
        "    os.write(2, b'licence expired\\n'); os._exit(7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with parpool(1, name="hopeless") as pool:
        broken.touch()
        running = pool.submit(time.sleep, 999)
        queued = pool.submit(os.getpid)
        wait_until(running.running)

        os.kill(pool.engines[0].pid, signal.SIGKILL)

        assert isinstance(running.exception(60), EngineDiedError)
        with pytest.raises(MgpuError, match=r"no engines for it: that of rank 0"):
            queued.result(20)
        with pytest.raises(MgpuError, match=r"%parpool restart"):
            pool.submit(os.getpid).result(60)
        broken.unlink()
        pool.restart()
        wait_until(lambda: pool.engines[0].state == "idle", 60, "a new engine")
        assert pool.submit(os.getpid).result(60) == pool.engines[0].pid


def test_a_task_waits_for_an_engine_that_starts_at_the_third_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = tmp_path / "failures"  # so many starts fail
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib\n"
        f"failures = pathlib.Path({str(failures)!r})\n"
        "if 'MGPU_RANK' in os.environ and (left := failures.read_text()):\n"
        "    failures.write_text(left[1:]); os._exit(7)\n"
    )
    failures.touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with parpool(1, name="third") as pool:
        room = pool.owner._core._room
        tell, given_up = room._on_death, []
        room._on_death = lambda engine, death: (
            given_up.append(engine.is_given_up),
            tell(engine, death),
        )
        failures.write_text("xx")

        os.kill(pool.engines[0].pid, signal.SIGKILL)

        wait_until(lambda: given_up, 60, "its death")
        assert pool.submit(abs, -4).result(60) == 4
        assert given_up == [False] * 3


def test_an_engine_that_hangs_at_its_start_is_told_after_the_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, threading\n"
        "if 'MGPU_RANK' in os.environ:\n"
        "    os.write(2, b'waiting for godot\\n'); threading.Event().wait()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(PoolStartError, match=r"(?s)within 2 s.*waiting for godot"):
        parpool(1, name="hanging", start_timeout=2)


def test_the_environment_is_there_before_the_program_starts(pool: Pool) -> None:
    for engine in pool.engines:
        raw = Path(f"/proc/{engine.pid}/environ").read_bytes()
        variables = dict(part.split(b"=", 1) for part in raw.split(b"\0") if b"=" in part)
        assert variables[b"RANK"] == str(engine.rank).encode()
        assert variables[b"CUDA_VISIBLE_DEVICES"] == b""
        assert variables[b"CUDA_DEVICE_ORDER"] == b"PCI_BUS_ID"
        assert variables[b"LOCAL_RANK"] == b"0"


def test_engines_run_the_kernels_interpreter_paths_and_threads(pool: Pool) -> None:
    def facts() -> tuple[str, str, list[str], str, bool]:
        return (
            sys.executable,
            os.getcwd(),
            sys.path,
            os.environ["OMP_NUM_THREADS"],
            hasattr(sys, "ps1"),
        )

    executable, folder, path, threads, is_interactive = pool.submit(facts).result(60)

    assert os.path.samefile(executable, sys.executable)
    assert folder == os.getcwd()
    assert path[: len(sys.path)] == sys.path
    assert int(threads) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert not is_interactive


def test_engines_follow_the_kernels_folder_and_environment(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "neighbour.py").write_text("VALUE = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLOUR_OF_THE_DAY", "green")

    def look() -> tuple[int, str, str]:
        import neighbour

        return neighbour.VALUE, os.environ["COLOUR_OF_THE_DAY"], os.getcwd()

    assert pool.submit_task(look, rank=0).result(60) == (1, "green", str(tmp_path))
    (tmp_path / "neighbour.py").write_text("VALUE = 22\n")
    assert pool.submit_task(look, rank=0).result(60)[0] == 22


def test_an_engine_carries_no_debugger_but_user_code_may_import_one(pool: Pool) -> None:
    def look() -> tuple[bool, str]:
        import sys

        is_loaded = "debugpy" in sys.modules
        import debugpy

        return is_loaded, debugpy.__name__

    assert pool.submit(look).result(20) == (False, "debugpy")


def test_ipyparallels_own_client_works_beside_ours(pool: Pool) -> None:
    client = pool.client

    assert client.ids == [0, 1]
    pids = client[:].apply_async(os.getpid).get(timeout=60)
    waits = client[:].execute("import asyncio\nawait asyncio.sleep(0)\nslept = 1", block=False)
    waits.get(timeout=60)

    assert sorted(pids) == sorted(engine.pid for engine in pool.engines)
    assert client[:].pull("slept", block=False).get(timeout=60) == [1, 1]


def test_a_pool_starts_no_controller_before_somebody_wants_its_client() -> None:
    with parpool(1, name="lean") as lean:
        assert lean.submit(os.getpid).result(60) == lean.engines[0].pid
        assert lean.owner.cluster.controller_pid is None

        busy = lean.submit(time.sleep, 1)
        wait_until(busy.running)
        client = lean.client

        assert lean.owner.cluster.controller_pid is not None
        client.wait_for_engines(1, timeout=60, interactive=False)
        busy.result(60)  # it has ended, but this is told on another connection


def test_the_controllers_ports_are_none_that_connections_get(pool: Pool) -> None:
    config = pool.client._config
    channels = ("registration", "control", "mux", "task", "iopub", "notification", "broadcast")
    ports = {int(config[channel].rpartition(":")[2]) for channel in channels}
    range_file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest, highest = map(int, range_file.read_text().split())

    assert len(ports) == len(channels)
    assert not ports & set(range(lowest, highest + 1))


def test_a_controller_that_cannot_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, parpool(1, name="taken") as pool:
        port = f"--IPController.engine_ports={taken.getsockname()[1]}"
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "CONTROLLER_ARGS", [*cluster.CONTROLLER_ARGS, port])
            with pytest.raises(PoolStartError, match=r"controller ended.*Address already in use"):
                _ = pool.client

        assert pool.client.ids == [0]


def test_the_controllers_death_harms_no_task(pool: Pool) -> None:
    assert pool.client.ids == [0, 1]
    victim = pool.owner.cluster.controller_pid
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_alive(victim))

    assert pool.submit(os.getpid).result(60)
    starts = pool.engines[0].starts
    os.kill(pool.engines[0].pid, signal.SIGKILL)
    wait_until(
        lambda: pool.engines[0].state == "idle" and pool.engines[0].starts > starts,
        60,
        "a new engine",
    )
    assert pool.submit_task(os.getpid, rank=0).result(60) == pool.engines[0].pid
    assert pool.owner.cluster.controller_pid is None

    pids = pool.client[:].apply_async(os.getpid).get(timeout=60)

    assert pids == [engine.pid for engine in pool.engines]


def test_an_idle_pool_ends_and_warns_before(capsys: pytest.CaptureFixture[str]) -> None:
    pool = parpool(1, name="lazy")
    pids = processes_of(pool)
    future = pool.submit(time.sleep, 3)
    assert parpool(1, name="lazy", idle_timeout=2) is pool
    future.result(60)  # for longer than that

    wait_until(lambda: not pool.is_open, 60, "the end of the pool")

    wait_until(lambda: not any(map(is_alive, pids)))
    said = capsys.readouterr().out
    assert "ends in" in said
    assert "ended because nothing used it" in said


def test_sizes_that_make_no_sense_are_refused() -> None:
    for size in (0, -1, (3, 2), "two", True):
        with pytest.raises(SelectionError):
            parpool(size, name="senseless")
    with pytest.raises(SelectionError, match="no GPU can be used"):
        parpool(1, gpus="0", name="senseless")


def test_a_request_that_makes_no_sense_leaves_the_open_pool_as_it_is(pool: Pool) -> None:
    before = [engine.pid for engine in pool.engines]

    for wrong in ({"n": 0}, {"n": (3, 2)}, {"per_gpu": 0}, {"visible": "all"}):
        with pytest.raises(SelectionError):
            parpool(name=pool.name, **wrong)

    assert [engine.pid for engine in pool.engines] == before


def test_the_idle_time_of_an_open_pool_can_be_changed() -> None:
    with parpool(1, name="idle") as pool:
        assert parpool(1, name="idle", idle_timeout=600) is pool
        assert "10 min" in repr(pool)
        parpool(1, name="idle")
        assert "10 min" in repr(pool)
        parpool(1, name="idle", idle_timeout=0)
        assert "for good" in repr(pool)


def test_the_magics_commands_say_what_they_did_and_take_no_other_words(nb: Notebook) -> None:
    assert "given 'small', but takes no more words" in nb.run("%parpool stop small").text
    assert "2 engines" in nb.check("%parpool status").text
    assert "New engines start on rank 1 of the pool" in nb.check("%parpool restart 1").text


def test_without_a_pool_there_is_none_and_nothing_starts() -> None:
    code = "import jupyter_mgpu as m; print(m.current_pool())"

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "None"


PLAIN_PROGRAM = """
import json, os, sys
from jupyter_mgpu.start import parpool
pool = parpool(2)
pool.client  # with a controller
pool.submit(exec, "while 1: pass")
print(json.dumps([e.pid for e in pool.engines] + [pool.owner.cluster.controller_pid,
      str(pool.owner.plan.folder), str(pool.owner.record_path)]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "exit"])
def test_nothing_survives_the_owners_end(how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PLAIN_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    line = next(text for text in process.stdout if text.startswith("["))
    *pids, folder, record = json.loads(line)
    if how == "exit":
        process.stdin.close()
    else:
        process.send_signal(getattr(signal, how))
    process.wait(60)

    wait_until(lambda: not any(map(is_alive, pids)), 60, "the end of the engines")
    wait_until(lambda: not Path(folder).exists() and not Path(record).exists(), 60, "clean files")


def test_the_current_pool_is_the_one_started_last(pool: Pool) -> None:
    with parpool(1, name="newest") as newest:
        assert current_pool() is newest
        assert pool_named("tests") is pool
    assert current_pool() is not newest
