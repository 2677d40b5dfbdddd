"""Kept pools on other hosts: their keeper owns them, and leaves nothing behind on any host."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kept_pools import ended_later, kernel, killed_kernel, record_of, traces_of
from open_mpi import allow_open_mpi
from slurm import queue, slurm  # noqa: F401 - a fixture
from ssh_hosts import Hosts

from jupyter_mgpu import control
from notebooks import Notebook, is_alive, wait_until

GONE_S = 60
"""Ends a hung test: nothing is left on any host when a pool or its keeper has ended."""

LAB = "--cluster lab"
WORK = """
import pathlib
def wait_for(path, *values):
    print("begins")
    mgpu.report(1, loss=0.5)
    pathlib.Path(path).with_suffix(f".{os.environ['RANK']}").touch()
    while not pathlib.Path(path).exists():
        time.sleep(0.02)
    return values
"""


def attach(nb: Notebook) -> str:
    return nb.check("%parpool --attach night\npool = mgpu.current_pool()").text


def detached() -> None:
    wait_until(lambda: record_of("night")["attached_pid"] is None, 10, "the detaching")


def describe_ssh(hosts: Hosts, folder: Path, **options: str) -> None:
    entries = "".join(
        f'{{ name = "{host.name}", gpus = "none", engines = 1 }},\n' for host in (hosts.a, hosts.b)
    )
    lines = "".join(f"{name} = {value}\n" for name, value in options.items())
    (folder / "mgpu-clusters.toml").write_text(
        f'[lab]\nkind = "ssh"\nconfig = "{hosts.config}"\n{lines}hosts = [\n{entries}]\n'
    )


def left_on(hosts: Hosts) -> list[str]:
    return [*hosts.a.programs().values(), *hosts.b.programs().values()]


@pytest.fixture
def lab(ssh_hosts: Hosts, tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts, described in the kernels' folder; nothing of ours is left there afterwards."""
    describe_ssh(ssh_hosts, tmp_path)
    yield ssh_hosts
    wait_until(lambda: not left_on(ssh_hosts), GONE_S, "the end of all that ran on the hosts")


@pytest.mark.ssh
@pytest.mark.usefixtures("lab")
def test_all_of_a_pool_over_ssh_comes_back(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""{WORK}
import numpy
get_ipython().run_cell_magic("spmd", "", "place = rank + 5")
tasks = [mgpu.parfeval(wait_for, {str(go)!r}, i, name=f"task-{{i}}") for i in range(3)]
large = mgpu.parfeval(lambda values: values * 2, numpy.arange(3_000_000.0), name="large")
while not (tasks[0].diary and tasks[1].diary and tasks[0].metrics and tasks[1].metrics):
    time.sleep(0.02)
pool.status()  # answered when all before has arrived
"""
    with killed_kernel(code, options=LAB, cwd=str(tmp_path)), kernel() as nb:
        traces = traces_of("night")
        detached()
        assert "tasks: 2 running, 2 queued" in attach(nb)
        assert nb.value("[e.host for e in pool.engines]") == ["hosta", "hostb"]
        nb.check("found = {task.name: task for task in pool.tasks()}")
        assert nb.value("[found[f'task-{i}'].diary for i in range(2)]") == ["begins\n"] * 2
        assert nb.value("found['task-0'].metrics") == [{"step": 1, "loss": 0.5}]

        go.touch()

        assert nb.value("[found[f'task-{i}'].result(30) for i in range(3)]") == [(0,), (1,), (2,)]
        assert nb.value("float(found['large'].result(30).sum())") == 2 * 3e6 * (3e6 - 1) / 2
        assert nb.value("[pool['place'][rank] for rank in range(2)]") == [5, 6]
        hosts = "[(host.name, host.state) for host in mgpu.snapshot().other_hosts]"
        assert nb.value(hosts) == [("hosta", "ok"), ("hostb", "ok")]
        assert nb.value("list(mgpu.spmd(lambda: mgpu.comm.all_reduce(1.0)))") == [2.0, 2.0]
        assert nb.value("pool.client.ids") == [0, 1]
        # Its own line, run again, is no second pool.
        nb.check(
            f"os.chdir({str(tmp_path)!r})\nget_ipython().run_line_magic('parpool', "
            "'2 --keep --name night --cluster lab')"
        )
        assert "was stopped" in nb.check("%parpool stop").text
        traces.wait_until_gone()


@pytest.mark.ssh
def test_a_killed_keeper_leaves_nothing_on_any_host_and_is_told(lab: Hosts, tmp_path: Path) -> None:
    with ended_later("night"), kernel(str(tmp_path)) as nb:
        nb.check(f"{WORK}%parpool 2 --keep --name night {LAB}\npool = mgpu.current_pool()")
        nb.check("tasks = [mgpu.parfeval(time.sleep, 600) for _ in range(3)]")
        wait_until(lambda: nb.value("tasks[1].running()"), 20, "running tasks")
        traces = traces_of("night")
        assert len(left_on(lab)) >= 2

        os.kill(traces.pids[0], signal.SIGKILL)

        assert "SIGKILL" in nb.run("tasks[2].result(20)").evalue
        wait_until(lambda: not left_on(lab), GONE_S, "the end of all that ran on the hosts")
        assert "none" in nb.run("%parpool --attach night").evalue  # who looks removes the files
        traces.wait_until_gone(GONE_S)


@pytest.mark.ssh
def test_modules_beside_the_notebook_are_sent_without_a_kernel_as_well(
    lab: Hosts, tmp_path: Path
) -> None:
    folder = lab.hidden / "project"
    folder.mkdir()
    describe_ssh(lab, folder)
    (folder / "beside_it.py").write_text("def words():\n    return 'first'\n")
    go = tmp_path / "go"
    code = f"""{WORK}
def use(path):
    wait_for(path)
    import beside_it
    return beside_it.words()
task = mgpu.parfeval(use, {str(go)!r}, name="uses")
while not task.diary:
    time.sleep(0.02)
"""
    with killed_kernel(code, options=LAB, cwd=str(folder)), kernel(str(folder)) as nb:
        detached()
        go.touch()
        wait_until(lambda: nb.run("mgpu.tasks.load('uses')").ok, 20, "the end of the task")
        assert nb.value("mgpu.tasks.load('uses').result()") == "first"
        attach(nb)
        (folder / "beside_it.py").write_text("def words():\n    return 'edited here'\n")
        words = "lambda: __import__('beside_it').words()"
        assert nb.value(f"list(mgpu.spmd({words}))") == ["edited here"] * 2


@pytest.mark.ssh
def test_a_kernel_that_dies_while_its_pool_starts_leaves_nothing(
    lab: Hosts, tmp_path: Path
) -> None:
    with ended_later("night"), kernel(str(tmp_path)) as nb:
        nb.submit(f"%parpool 2 --keep --name night {LAB}")
        wait_until(lambda: left_on(lab), 20, "something on the hosts")

        nb.kill()

        wait_until(lambda: not left_on(lab), GONE_S, "the end of all that ran on the hosts")
        wait_until(
            lambda: not [pool for pool in control.find_pools() if pool.name == "night"], GONE_S
        )


# --- schedulers ----------------------------------------------------------------------------


@pytest.fixture
def lab_of_slurm(
    slurm: dict[str, str],  # noqa: F811 - the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """Slurm without GPUs, described in the kernels' folder; no job of ours is left afterwards."""
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    (tmp_path / "mgpu-clusters.toml").write_text('[lab]\nkind = "slurm"\ngpus = "none"\n')
    yield str(tmp_path)
    wait_until(lambda: not queue(), GONE_S, "an empty queue")


@pytest.mark.slurm
def test_a_pool_in_a_job_comes_back_and_its_stop_ends_the_job(lab_of_slurm: str) -> None:
    go = Path(lab_of_slurm) / "go"
    code = f"""{WORK}
tasks = [mgpu.parfeval(wait_for, {str(go)!r}, i, name=f"task-{{i}}") for i in range(3)]
while not (tasks[0].diary and tasks[1].diary):
    time.sleep(0.02)
pool.status()
"""
    with killed_kernel(code, options=LAB, cwd=lab_of_slurm), kernel() as nb:
        (job,) = queue("%A")
        traces = traces_of("night")
        detached()
        assert f"Slurm's job {job} runs" in attach(nb)
        go.touch()
        loads = "[mgpu.tasks.load(f'task-{i}').result(30) for i in range(3)]"
        assert nb.value(loads) == [(0,), (1,), (2,)]
        assert nb.value("{e.place for e in pool.engines}") == {"CPU on node1"}

        nb.check("%parpool detach")
        command = "!{sys.executable} -m jupyter_mgpu.cli stop night"
        assert "was stopped" in nb.check(command).stdout

        wait_until(lambda: not queue(), GONE_S, "an empty queue")
        traces.wait_until_gone()


@pytest.mark.slurm
def test_a_killed_keeper_leaves_no_job(lab_of_slurm: str) -> None:
    with killed_kernel("task = mgpu.parfeval(time.sleep, 600)", options=LAB, cwd=lab_of_slurm):
        assert len(queue()) == 1

        os.kill(control.named("night").kernel_pid, signal.SIGKILL)

        wait_until(lambda: not queue(), GONE_S, "an empty queue")


@pytest.mark.slurm
def test_an_idle_kept_pool_gives_its_job_back(lab_of_slurm: str) -> None:
    code = "pool.owner.set_idle_timeout(1.0).result()"
    with killed_kernel(code, options=LAB, cwd=lab_of_slurm):
        wait_until(lambda: not queue(), 1 + GONE_S, "an empty queue")


@pytest.mark.slurm
def test_the_end_of_a_job_is_told_to_who_has_the_pool_and_who_gets_it_later(
    lab_of_slurm: str,
) -> None:
    with ended_later("night"), kernel(lab_of_slurm) as later:
        with kernel(lab_of_slurm) as nb:
            nb.check(f"%parpool 1 --keep --name night {LAB}\npool = mgpu.current_pool()")
            nb.check("task = mgpu.parfeval(time.sleep, 600, name='sleeps')")
            wait_until(lambda: nb.value("task.running()"), 20, "a running task")
            (job,) = queue("%A")
            limit = ["scontrol", "update", f"JobId={job}", "EndTime=now"]
            subprocess.run(limit, check=True)
            cell = nb.run("task.result(90)", 100)  # Slurm looks every 30 s
            end = f"Slurm's job {job} ran out of its time limit"
            assert cell.ename == "EngineDiedError"
            assert end in cell.evalue
            wait_until(lambda: end in nb.check("%parpool status").text, 20, "the pool's status")
            nb.kill()
        detached()
        told = attach(later)
        assert f"No engine on rank 0: No further job is submitted, since {end}." in told
        assert end in later.run("mgpu.tasks.load('sleeps').result()").evalue
        assert end in later.run("pool.submit(abs, 1).result(20)").evalue


@pytest.mark.slurm
def test_a_batch_in_a_job_ends_with_it(lab_of_slurm: str) -> None:
    with ended_later("job"), kernel(lab_of_slurm) as nb:
        nb.check("import socket")
        nb.check("job = mgpu.batch(os.getenv, 'SLURM_JOB_ID', name='job', cluster='lab')")
        assert nb.value("job.result()").isdigit()
        wait_until(lambda: not queue(), GONE_S, "an empty queue")
        assert nb.value("mgpu.tasks.load('job').result()").isdigit()


LAUNCHERS = {
    "mpi": 'kind = "mpi"\ngpus = "none"\noptions = ["--oversubscribe"]\n',
    "other": 'kind = "ipyparallel.cluster.launcher.LocalEngineSetLauncher"\n',
}


@pytest.mark.mpi
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_pool_of_another_launcher_comes_back_and_ends_with_its_keeper(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if launcher == "mpi":
        allow_open_mpi(monkeypatch)
    (tmp_path / "mgpu-clusters.toml").write_text(f"[lab]\n{LAUNCHERS[launcher]}")
    go = tmp_path / "go"
    code = f"{WORK}\ntask = mgpu.parfeval(wait_for, {str(go)!r}, 7, name='waits')"
    with killed_kernel(code, options=LAB, cwd=str(tmp_path)), kernel() as nb:
        detached()
        attach(nb)
        go.touch()
        assert nb.value("mgpu.tasks.load('waits').result(30)") == (7,)
        assert nb.value("list(mgpu.spmd(lambda: mgpu.comm.all_reduce(1.0)))") == [2.0, 2.0]
        traces = traces_of("night")
        traces.pids += nb.value("[engine.pid for engine in pool.engines]")

        os.kill(traces.pids[0], signal.SIGKILL)

        wait_until(lambda: not [pid for pid in traces.pids if is_alive(pid)], GONE_S)
        assert "none" in nb.run("%parpool --attach night").evalue
        traces.wait_until_gone()
