"""The life of a notebook's kernel: whatever ends it, nothing of its pools stays behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from gpu_stubs import GpuMachine, gpus

from jupyter_mgpu.leases import LeaseBook
from notebooks import Notebook, is_alive, notebook, wait_until

LOAD = "%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu, os, sys, threading, time"


@dataclass
class Traces:
    """All that a notebook's pool has put on this machine."""

    pids: list[int]
    folder: Path
    record: Path

    def are_gone(self) -> bool:
        return not (any(map(is_alive, self.pids)) or self.folder.exists() or self.record.exists())


def descendants(pid: int) -> list[int]:
    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


def zombies_of(pid: int) -> list[int]:
    return [child for child in descendants(pid) if not is_alive(child)]


def traces_of(nb: Notebook) -> Traces:
    owner = "mgpu.current_pool().owner"
    folder, record = nb.value(f"(str({owner}.plan.folder), str({owner}.record_path))")
    return Traces(descendants(nb.pid), Path(folder), Path(record))


def engine_pids(nb: Notebook) -> list[int]:
    return nb.value("[e.pid for e in mgpu.current_pool().engines]")


BYSTANDER = """
import signal, sys
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, lambda number, frame: print(number, flush=True))
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def bystander() -> Iterator[None]:
    """A process group that tells of each signal it gets: none may come."""
    with subprocess.Popen(
        [sys.executable, "-c", BYSTANDER],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        assert process.poll() is None
        process.kill()
        assert process.stdout.read() == ""


BUSY = """
def with_children():
    import multiprocessing, time
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=time.sleep, args=(999,)) for _ in range(2)]
    for child in children:
        child.start()
    print("children run")
    while True:
        pass

def in_c():
    return sum(range(10**12))  # never lets another thread of its engine run

pool = mgpu.current_pool()
pool.client  # with a controller
tasks = [pool.submit_task(with_children, rank=0), pool.submit_task(in_c, rank=1)]
while not (tasks[0].diary and tasks[1].running()):
    time.sleep(0.02)
"""


def end(nb: Notebook, how: str) -> None:
    if how == "restart":
        nb.manager.restart_kernel()
    elif how == "shutdown":
        nb.manager.shutdown_kernel()
    else:
        os.kill(nb.pid, getattr(signal, how))


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("how", ["restart", "shutdown", "SIGTERM", "SIGKILL"])
def test_nothing_is_left_however_the_kernel_ends(gpu_machine, how: str) -> None:
    machine: GpuMachine = gpu_machine(gpus(3))
    book = LeaseBook(machine.lease_folder)
    with notebook(dict(machine)) as nb:
        nb.check(f"{LOAD}\n%parpool 3")
        nb.check(BUSY)
        os.kill(engine_pids(nb)[2], signal.SIGSTOP)
        traces = traces_of(nb)
        assert len(traces.pids) >= 3 + 3 + 2 + 1  # engines, their guards, children, controller

        end(nb, how)

        wait_until(lambda: traces.are_gone() and not book.live(), 60, "the end of everything")
        if how == "restart":
            nb.client.wait_for_ready(60)
            nb.check(f"{LOAD}\n%parpool 3")
            assert len(book.live()) == 3
            assert not set(traces.pids) & set(engine_pids(nb))


def test_idle_engines_end_with_a_kernel_that_is_busy_itself(tmp_path: Path) -> None:
    with notebook() as nb:
        nb.check(f"{LOAD}\n%parpool 1")
        traces = traces_of(nb)
        marker = tmp_path / "counting"
        nb.submit(f"open({str(marker)!r}, 'w').close(); sum(range(10**12))")
        wait_until(marker.exists)

        nb.kill()

        wait_until(traces.are_gone, 60, "the end of everything")


@pytest.fixture(scope="module")
def nb() -> Iterator[Notebook]:
    """A notebook with the extension loaded, without a pool."""
    with notebook() as opened:
        opened.check(LOAD)
        yield opened


def last_line(nb: Notebook, code: str) -> object:
    return json.loads(nb.check(code).stdout.strip().splitlines()[-1])


FORKS = """
import json, multiprocessing
def end_as_a_script_would():
    import atexit, os  # IPython's own part of it empties the notebook's namespace
    try:
        atexit._run_exitfuncs()
    finally:
        os._exit(0)
child = multiprocessing.get_context("fork").Process(target=print, args=("in a child",))
child.start()
child.join(60)
pid = os.fork()
if pid == 0:
    end_as_a_script_would()
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print()
print(json.dumps([child.exitcode, code]))
"""


def test_a_forked_child_of_the_kernel_does_not_end_the_pool(nb: Notebook) -> None:
    nb.check("%parpool 1")
    before = traces_of(nb)

    assert last_line(nb, FORKS) == [0, 0]

    assert traces_of(nb) == before
    assert nb.value("mgpu.parfeval(pow, 6, 2).result(60)") == 36
    assert before.folder.exists()
    assert before.record.exists()
    nb.check("%parpool stop")


LIVES = """
import gc, json
forks = []
sys.addaudithook(lambda event, args: forks.append(event) if event.startswith("os.fork") else None)
def live():
    with mgpu.parpool(1, name="one-of-many") as pool:
        assert pool.submit(pow, 2, 3).result(60) == 8
def measure():
    gc.collect()
    rss_pages = int(open("/proc/self/statm").read().split()[1])
    rss_mib = rss_pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    threads = sorted(thread.name for thread in threading.enumerate())
    files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    ours = [file for file in files if "history.sqlite" not in file]  # IPython's come and go
    return [rss_mib, threads, len(ours)]
"""


def test_starting_and_ending_pools_costs_the_kernel_nothing(nb: Notebook) -> None:
    nb.check(f"{LIVES}\nlive()\nlive()")
    memory_mib, threads, descriptors = last_line(nb, "print(json.dumps(measure()))")

    nb.check("for _ in range(5): live()")

    def is_all_gone() -> bool:  # also what belonged to a pool that was ended a moment ago
        memory_now, threads_now, descriptors_now = last_line(nb, "print(json.dumps(measure()))")
        is_back = threads_now == threads and descriptors_now <= descriptors
        return is_back and memory_now < memory_mib + 5

    wait_until(is_all_gone, 60, "the end of the pools' memory, threads and descriptors")
    wait_until(lambda: not zombies_of(nb.pid), 60, "the end of the pools' processes")


REPLACEMENT = """
pool = mgpu.parpool(1)
first = pool.engines[0].pid
os.kill(first, 9)
while pool.engines[0].pid in (None, first) or pool.engines[0].state != "idle":
    time.sleep(0.05)
mgpu.spmd(os.getpid)
print(json.dumps(forks))
"""


def test_the_kernel_never_forks_without_exec(nb: Notebook) -> None:
    nb.check(LIVES)

    assert last_line(nb, REPLACEMENT) == []

    nb.check("%parpool stop")


def kernel_behind(folder: Path, command: list[str]) -> None:
    """Describe a kernel that is started through another command, as the default one."""
    spec = {
        "argv": [*command, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python behind a command",
        "language": "python",
    }
    place = folder / "kernels" / "python3"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))


def can_rename_host() -> bool:
    if shutil.which("unshare") is None or shutil.which("hostname") is None:
        return False
    command = ["unshare", "--uts", "hostname", "nowhere.invalid"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def listeners(pids: list[int]) -> list[str]:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            connections = getattr(process, "net_connections", None) or process.connections
            found += [
                str(connection.laddr.ip)
                for connection in connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
    return found


def test_no_proxy_and_no_name_service_is_needed_and_nobody_outside_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_rename_host():
        pytest.skip("the host can be renamed by root only")
    rename = 'hostname nowhere.invalid && exec "$0" "$@"'
    kernel_behind(tmp_path, ["unshare", "--uts", "sh", "-c", rename])
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    proxy = "http://192.0.2.1:3128"  # an address that nobody has
    names = ("http_proxy", "https_proxy", "all_proxy")
    proxies = {name: proxy for lower in names for name in (lower, lower.upper())}

    with notebook({**proxies, "no_proxy": "", "NO_PROXY": ""}) as nb:
        assert nb.value("__import__('socket').gethostname()") == "nowhere.invalid"
        nb.check(f"{LOAD}\n%parpool 2")
        cell = nb.check("%%spmd\nmgpu.comm.all_reduce(rank + 1)")
        assert "3" in cell.text

        ours = listeners([nb.pid, *descendants(nb.pid)])

    assert ours
    assert all(address.startswith("127.") for address in ours)


def test_small_shared_memory_is_told_once_and_troubles_no_large_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    inside = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$0" "$@"']
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small /dev/shm")
    kernel_behind(tmp_path, inside)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))

    with notebook() as nb:
        start = nb.check(f"{LOAD}\n%parpool 2").text

        assert start.count("/dev/shm has 64 MiB") == 1
        assert "--shm-size" in start
        nb.check("import numpy as np\nbig = np.ones(25_000_000)")
        assert nb.value("float(mgpu.parfeval(lambda: big * 2).result(60).sum())") == 5e7


FALSE_PYTHON = """#!/bin/sh
echo "$0 $*" >> "{marker}"
exit 1
"""
WRAPPER = """#!/bin/sh
# As `uv run` does: the interpreter's folder is known to the wrapper, and PATH leads elsewhere.
export PATH="{folder}:$PATH" VIRTUAL_ENV="{folder}" UV_RUN_RECURSION_DEPTH=1
"$@" &
trap 'kill -TERM $!' TERM
trap 'kill -INT $!' INT
until wait $!; [ $? -lt 128 ]; do kill -0 $! 2>/dev/null || break; done
"""


def test_engines_run_the_kernels_own_python_whoever_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, bin_folder = tmp_path / "called", tmp_path / "bin"
    bin_folder.mkdir()
    scripts = {
        name: FALSE_PYTHON.format(marker=marker)
        for name in ("python", "python3", Path(sys.executable).name)
    }
    scripts["run"] = WRAPPER.format(folder=bin_folder)
    for name, script in scripts.items():
        (bin_folder / name).write_text(script)
        (bin_folder / name).chmod(0o755)
    kernel_behind(tmp_path, [str(bin_folder / "run")])
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))

    with notebook() as nb:
        assert nb.value("__import__('psutil').Process().parent().name()") == "run"
        assert nb.value("__import__('shutil').which('python')") == str(bin_folder / "python")
        nb.check(f"{LOAD}\n%parpool 2")
        facts = "(sys.executable, sys.prefix, sys.base_prefix, sys.version)"
        kernels, path = nb.value(f"({facts}, sys.path)")
        nb.check(f"%%spmd --quiet\nimport sys\nfacts, path = {facts}, sys.path")
        engines = nb.value("list(mgpu.current_pool()['facts'])")
        paths = nb.value("list(mgpu.current_pool()['path'])")
        traces = traces_of(nb)
        (child,) = psutil.Process(nb.pid).children()  # the wrapper's: the kernel itself
        child.kill()
        wait_until(traces.are_gone, 60, "the end of everything")

    assert engines == [kernels] * 2
    assert [found[: len(path)] for found in paths] == [path] * 2
    assert not marker.exists()


def test_files_beside_the_notebook_hide_no_library_from_the_engines(tmp_path: Path) -> None:
    with notebook(cwd=str(tmp_path)) as nb:
        # Now: ipykernel 6 itself does not start beside such files.
        for name in ("random", "socket"):
            (tmp_path / f"{name}.py").write_text("raise ImportError('the user\\'s own file')\n")
        (tmp_path / "neighbour.py").write_text("VALUE = 7\n")
        nb.check(f"{LOAD}\n%parpool 1")

        cell = nb.check("%%spmd\nimport random, neighbour\nprint(neighbour.VALUE)")

    assert cell.stdout == "7\n"
