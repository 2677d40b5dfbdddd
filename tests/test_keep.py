"""Pools that outlive their kernel: what was submitted goes on, and nothing is lost."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from gpu_stubs import GpuMachine, gpus
from kept_pools import LOAD, ended_later, kernel, killed_kernel, record_of, traces_of

from jupyter_mgpu import control
from jupyter_mgpu.keeping import Kernels
from jupyter_mgpu.keeping.connection import Connection, open_streams
from jupyter_mgpu.leases import LeaseBook
from jupyter_mgpu.owner.owner_loop import OwnerLoop
from jupyter_mgpu.owner.plans import PoolPlan
from jupyter_mgpu.rendezvous import Rendezvous
from notebooks import is_alive, notebook, wait_until


def tasks_of(num_steps: int) -> str:
    """Start four tasks on two engines, each of so many steps, and see the first two at work."""
    return f"""
def work(n, seconds=0.2):
    for i in range(n):
        print("step", i)
        mgpu.report(i, loss=1 / (i + 1))
        time.sleep(seconds)
    return list(range(n))

tasks = [mgpu.parfeval(work, {num_steps}, name=f"work-{{i}}") for i in range(4)]
while not all(task.diary for task in tasks[:2]):
    time.sleep(0.02)
"""


LASTING_TASKS = tasks_of(3000)
"""Ten minutes each: they end only when somebody ends them."""


def test_tasks_of_a_killed_kernel_run_on_and_come_back() -> None:
    with killed_kernel(tasks_of(10)), kernel() as nb:
        cell = nb.check("%parpool --attach night")
        assert "Attached to the pool 'night': 2 engines" in cell.text
        nb.check("found = [mgpu.tasks.load(f'work-{i}') for i in range(4)]")
        assert nb.value("[task.result() for task in found]") == [list(range(10))] * 4
        diary = "".join(f"step {i}\n" for i in range(10))
        assert nb.value("[task.diary for task in found]") == [diary] * 4
        losses = "[[row['loss'] for row in task.metrics] for task in found]"
        assert nb.value(losses) == [[1 / (i + 1) for i in range(10)]] * 4


def test_a_kept_pool_is_stopped_from_its_kernel_and_nothing_stays() -> None:
    with ended_later("night"), kernel() as nb:
        nb.check("%parpool 2 --keep --name night\npool = mgpu.current_pool()")
        nb.check("%parpool 1:2 --name night")
        cell = nb.run("%parpool 3 --name night")
        assert "'night' keeps its own: it has 2 engines" in cell.evalue
        nb.check("pool.client  # with a controller")
        nb.check(LASTING_TASKS)
        traces = traces_of("night")
        assert len(traces.pids) >= 1 + 2 + 1  # keeper, engines, controller
        assert "4 tasks were cancelled" in nb.check("%parpool stop").text
        traces.wait_until_gone()
        states = "[str(task.state) for task in tasks]"  # told in another thread
        wait_until(lambda: nb.value(states) == ["cancelled"] * 4)


def test_a_kept_pool_is_stopped_while_no_kernel_has_it() -> None:
    with killed_kernel(LASTING_TASKS):
        traces = traces_of("night")
        wait_until(lambda: record_of("night")["attached_pid"] is None, 60, "the detaching")
        (look,) = control.look_at([control.named("night")])
        assert look.words == "2 of 2 engines busy; kept, no kernel"
        assert "was stopped" in control.stop(control.named("night")).words
        traces.wait_until_gone()


def test_a_killed_keeper_takes_its_engines_along_and_is_told() -> None:
    with ended_later("night"), kernel() as nb:
        nb.check("%parpool 2 --keep --name night\npool = mgpu.current_pool()")
        nb.check(LASTING_TASKS)
        traces = traces_of("night")
        os.kill(traces.pids[0], signal.SIGKILL)
        cell = nb.run("tasks[3].result(60)")
        assert cell.ename == "MgpuError"
        assert "the keeper of the pool 'night'" in cell.evalue
        assert "SIGKILL" in cell.evalue
        traces.wait_until_gone()
        assert "ended" in nb.check("print(pool)").text
        assert nb.run("pool.submit(print)").ename == "PoolClosedError"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2 --keep", "--name night"),
        ("--attach nobody", "There is no kept pool 'nobody'"),
        ("2 --attach night", "was given together with N"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(line: str, words: str) -> None:
    with kernel() as nb:
        cell = nb.run(f"%parpool {line}")
        assert cell.ename == "UsageError"
        assert words in cell.evalue


def test_of_two_kernels_that_start_a_pool_of_one_name_at_once_one_gets_it() -> None:
    line = "parpool', '1 --keep --name night')"
    with ended_later("night"), kernel() as one, kernel() as other:
        for _ in range(3):
            start_s = time.monotonic() + 0.2  # the clock is the same in all processes
            code = f"""
while time.monotonic() < {start_s}:
    pass
get_ipython().run_line_magic('{line}"""
            cells = {nb: nb.submit(code) for nb in (one, other)}
            for nb, cell in cells.items():
                nb.wait(cell, 60)
            assert [pool.name for pool in control.find_pools()].count("night") == 1
            (winner,) = [nb for nb, cell in cells.items() if cell.ok]
            (loser,) = [nb for nb, cell in cells.items() if not cell.ok]
            assert cells[loser].ename == "UsageError"
            assert f"(process {winner.pid})" in cells[loser].evalue
            assert "one kernel at a time can use it" in cells[loser].evalue
            winner.check("%parpool stop")
        # Its end gives the name back, at once.
        loser.check("%parpool 1 --keep --name night")


CONTEST = """
import sys
from jupyter_mgpu.errors import AttachError
from jupyter_mgpu.keeping import name_lock
name_lock.TAKE_S = 0
for line in sys.stdin:
    try:
        lock = name_lock.NameLock(line, "a kernel")
    except AttachError:
        print("refused", flush=True)
    else:
        print("taken", flush=True)
        sys.stdin.readline()
        lock.release()
"""


def test_a_name_has_one_holder_however_often_two_want_it() -> None:
    command = [sys.executable, "-c", CONTEST]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as other:
        for round_ in range(300):
            for process in (one, other):
                process.stdin.write(f"night {round_ % 2}\n")
                process.stdin.flush()
            said = {process: process.stdout.readline().strip() for process in (one, other)}
            assert sorted(said.values()) == ["refused", "taken"]
            winner = next(process for process, word in said.items() if word == "taken")
            winner.stdin.write("\n")
            winner.stdin.flush()
        one.stdin.close()
        other.stdin.close()
        assert one.wait(20) == other.wait(20) == 0


def test_a_start_that_fails_raises_as_without_keep() -> None:
    with kernel() as nb:
        cell = nb.run("mgpu.parpool(1, gpus='7', keep=True, name='night')")
        assert cell.ename == "SelectionError"
        assert "--gpus 7 was asked for, but no GPU can be used" in cell.evalue
        assert not [pool for pool in control.find_pools() if pool.name == "night"]


def test_a_keeper_that_cannot_begin_says_why_and_ends(tmp_path: Path) -> None:
    (tmp_path / "jupyter_mgpu").mkdir()
    (tmp_path / "jupyter_mgpu" / "tasks").touch()  # where the folder of its journal should be
    with kernel() as nb:
        nb.check(f"os.environ['JUPYTER_DATA_DIR'] = {str(tmp_path)!r}")
        cell = nb.run("%parpool 1 --keep --name night")
        assert "FileExistsError" in cell.evalue
        keepers = [child.pid for child in psutil.Process(nb.pid).children()]
        wait_until(lambda: not any(map(is_alive, keepers)), 60, "the keeper's end")


# Answers flock as some filesystems of clusters do, in this process and its children: seccomp
# returns ENOSYS for the system call of that number on this processor.
WITHOUT_LOCKS = """
import ctypes, errno, platform, struct
flock = {"x86_64": 73, "aarch64": 32}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, flock), (6, 0, 0, 0x50000 | errno.ENOSYS)]
steps.append((6, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program, 0, 0) == 0
"""


def test_a_runtime_folder_without_locks_is_named_with_the_way_out(tmp_path: Path) -> None:
    with kernel() as nb:
        nb.check(f"os.environ['JUPYTER_RUNTIME_DIR'] = {str(tmp_path)!r}")
        nb.check(WITHOUT_LOCKS)
        cell = nb.run("%parpool 1 --keep --name night")
        assert cell.ename == "UsageError"
        assert f"cannot be locked in {tmp_path / 'jupyter_mgpu'}: Function not" in cell.evalue
        assert "Set JUPYTER_RUNTIME_DIR to a folder on a local disk" in cell.evalue


def test_a_keeper_that_cannot_read_its_order_says_why(tmp_path: Path) -> None:
    with kernel() as nb:
        nb.check(f"os.environ['XDG_RUNTIME_DIR'] = {str(tmp_path)!r}")
        nb.check("class Name(str): pass")
        cell = nb.run("mgpu.parpool(1, keep=True, name=Name('night'))")
        assert "exited with code 1. Its last words:" in cell.evalue
        assert "Can't get attribute 'Name'" in cell.evalue
        assert not list(tmp_path.glob("mgpu-*"))


def test_a_keeper_that_cannot_be_imported_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    library, runtime = tmp_path / "library", tmp_path / "runtime"
    library.mkdir()
    runtime.mkdir()
    (library / "zmq.py").write_text("raise ImportError('a broken installation')")
    with kernel() as nb:
        nb.check(f"os.environ['XDG_RUNTIME_DIR'] = {str(runtime)!r}")
        nb.check(f"os.environ['PYTHONPATH'] = {str(library)!r}")
        cell = nb.run("%parpool 1 --keep --name night")
        assert "ImportError: a broken installation" in cell.evalue
        assert not list(runtime.glob("mgpu-*"))


SETTINGS = """
from jupyter_mgpu.clusters import ClusterDescription, LauncherOptions
def start(delay):
    kind = "ipyparallel.cluster.launcher.LocalEngineSetLauncher"
    lab = ClusterDescription("lab", kind, options=LauncherOptions({"delay": delay}))
    return mgpu.parpool(1, keep=True, name="night", cluster=lab)
"""


def test_settings_of_a_cluster_are_objects_that_the_keeper_can_import(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("class Delay(float): pass")
    with ended_later("night"), kernel(str(tmp_path)) as nb:
        nb.check(SETTINGS)
        nb.check("class Delay(float): pass\nimport beside")
        unsent = nb.run("start(lambda: 0.1)")
        unread = nb.run("start(Delay(0.1))")
        nb.check("start(beside.Delay(0.1))")
        assert (unsent.ename, unread.ename) == ("ClusterError", "ClusterError")
        assert "'lab' cannot be sent to the keeper of a kept pool" in unsent.evalue
        assert "Can't get attribute 'Delay'" in unread.evalue


def test_a_kernel_is_at_work_while_tasks_run_that_it_was_attached_to() -> None:
    with killed_kernel("task = mgpu.parfeval(time.sleep, 600)"), kernel() as nb:
        nb.check("from jupyter_mgpu import activity\nactivity.BEAT_S = 0.05")
        nb.check("%parpool --attach night")

        while nb.client.get_iopub_msg(timeout=60)["msg_type"] != "mgpu_activity":
            pass


def test_a_kernel_that_has_gone_before_its_pool_was_ready_does_not_have_it(tmp_path: Path) -> None:
    async def keep() -> int | None:
        kernels = Kernels({})
        plan = PoolPlan("night", (), tmp_path, Rendezvous())
        core = OwnerLoop(plan, kernels.on_event, outlives=True)
        kernels.own(core)
        serving = asyncio.ensure_future(core.serve())
        await asyncio.wrap_future(core.ready)
        ours, theirs = socket.socketpair()
        hearing = asyncio.ensure_future(kernels.take_in(*await open_streams(theirs)))
        streams = await open_streams(ours)
        one = Connection(*streams, lambda *_: None, on_refused=lambda *_: None, holds=False)
        facts = {"folder": None, "path": [], "kernel_id": None, "notebook": None}
        one.send({"op": "hello", "pid": os.getpid(), "version": version("jupyter_mgpu"), **facts})
        one.close()
        await hearing
        await kernels.serve()
        attached_pid = core.plan.attached_pid
        core.stop("the test is over")
        await serving
        await kernels.close()
        return attached_pid

    assert asyncio.run(keep()) is None


def test_a_kernel_that_dies_while_its_pool_starts_takes_it_along() -> None:
    with ended_later("night"), kernel() as nb:
        nb.submit("%parpool 2 --keep --name night")
        wait_until(lambda: any(p.name == "night" for p in control.find_pools()), 60, "a record")
        traces = traces_of("night")
        nb.kill()
        traces.wait_until_gone()
        assert not is_alive(traces.pids[0])


def test_the_gpus_stay_leased_without_a_kernel_and_are_free_afterwards(gpu_machine) -> None:
    machine: GpuMachine = gpu_machine(gpus(2))
    book = LeaseBook(machine.lease_folder)
    with ended_later("night"):
        with notebook(dict(machine)) as nb:
            nb.check(f"{LOAD}\n%parpool 1 --gpus 1 --keep --name night")
            keeper = control.named("night").kernel_pid
            assert nb.value("mgpu.current_pool().engines[0].device").startswith("GPU 1")
            nb.kill()
        (lease,) = book.live()
        assert (lease.pid, lease.pool) == (keeper, "night")
        with notebook(dict(machine)) as nb:
            cell = nb.run(f"{LOAD}\n%parpool 1 --gpus 1")
            assert f"pool 'night' rank 0 (user {lease.user}, pid {keeper})" in cell.evalue
            cell = nb.run("mgpu.parpool(1, gpus='1', keep=True, name='other')")
            assert cell.ename == "GpuBusyError"
            assert "pool 'night'" in nb.value("str(sys.last_value.holders)")
            cell = nb.submit("%parpool 1 --gpus 1 --keep --name other --wait")
            nb.wait_for_output(cell, "Waiting: ")
            nb.stop()
            assert nb.wait(cell).ename == "KeyboardInterrupt"
            wait_until(lambda: not psutil.Process(nb.pid).children(), 60, "the keeper's end")
            nb.check("%parpool stop --name night")
            wait_until(lambda: not book.live(), 60, "free GPUs")


def test_the_gpu_of_the_notebook_itself_counts_as_free_for_its_kept_pool(gpu_machine) -> None:
    machine: GpuMachine = gpu_machine(gpus(1))
    with ended_later("night"), notebook(dict(machine)) as nb:
        nb.check(LOAD)
        machine.add(f"process 0 pid={nb.pid} memory=900")
        cell = nb.check("%parpool 1 --keep --name night")
        assert "is used by this notebook itself as well" in cell.text
