"""Pools whose engines are jobs of a real Slurm: started, replaced, cancelled, and nothing left."""

import contextlib
import gc
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpu_stubs import gpus
from slurm import queue, running, slurm, two_nodes, without_controller  # noqa: F401 - fixtures

import jupyter_mgpu as mgpu
from jupyter_mgpu import clusters
from jupyter_mgpu.clusters import ClusterDescription, SlurmOptions
from jupyter_mgpu.cuda import Answer
from jupyter_mgpu.errors import EngineDiedError, MgpuError, PoolStartError, SelectionError
from jupyter_mgpu.opening import scheduled_plan
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.transport import slurm_queue
from notebooks import Notebook, is_alive, wait_for_file, wait_until

pytestmark = pytest.mark.slurm

NAMED_S = 30
"""So soon after the end of a job its tasks have an error with the cause; Slurm has most of it."""
GONE_S = 15
"""So soon after the end of a pool or its kernel the queue is empty."""


@pytest.fixture(scope="module")
def cluster(
    slurm: dict[str, str],  # noqa: F811 - the fixture
) -> Iterator[ClusterDescription]:
    """Slurm without GPUs, for this process as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
        yield replace(clusters.find("slurm"), gpus="none")


def options(cluster: ClusterDescription, **values: Any) -> ClusterDescription:
    return replace(cluster, options=SlurmOptions(**values))


def job_of(pool: Pool) -> str:
    return str(pool.submit(lambda: os.environ["SLURM_JOB_ID"]).result(20))


@pytest.fixture
def pool(cluster: ClusterDescription) -> Iterator[Pool]:
    with mgpu.parpool(2, cluster=cluster, name="slurm") as opened:
        yield opened
    wait_until(lambda: not queue(), GONE_S, "an empty queue")


def holder(*options: str) -> "subprocess.Popen[bytes]":
    """A job of somebody else, which runs when this returns."""
    name = f"holder-{time.monotonic_ns()}"  # the jobs of others may come and go meanwhile
    command = ["srun", f"--job-name={name}", *options, "sleep", "600"]
    job = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    asking = ["squeue", "--noheader", "--format=%t", f"--name={name}"]
    wait_until(lambda: subprocess.check_output(asking, text=True).strip() == "R", 60, "the job")
    return job


def end(job: "subprocess.Popen[bytes]") -> None:
    job.terminate()  # srun ends its job
    job.wait(60)
    wait_until(lambda: not queue(), GONE_S, "an empty queue")


def test_ranks_are_those_of_the_job_and_meet_in_collectives(pool: Pool) -> None:
    def ranks() -> tuple[str, float, list[str]]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor([float(os.environ["RANK"]) + 1])
        dist.all_reduce(total)
        names = [name for name in os.environ if "PROCID" in name or name == "MGPU_ORDERS"]
        return os.environ["RANK"], float(total), names

    assert list(mgpu.spmd(ranks)) == [("0", 3.0, []), ("1", 3.0, [])]
    assert [engine.host for engine in pool.engines] == ["node1", "node1"]
    assert [line.split()[1] for line in queue()] == ["R"]
    assert not list(Path.cwd().glob("*.sbatch"))
    assert not list(Path.cwd().glob("slurm-*.out"))


def test_an_engine_that_dies_is_replaced_by_a_job_of_its_own(pool: Pool) -> None:
    first, second = pool.engines
    assert second.pid is not None

    os.kill(second.pid, signal.SIGKILL)

    wait_until(lambda: pool.engines[1].starts == 1 and pool.engines[1].state == "idle", 60)
    assert pool.engines[0].pid == first.pid
    assert len(queue()) == 2
    assert list(mgpu.spmd(lambda: os.environ["RANK"])) == ["0", "1"]


def test_the_status_counts_the_time_limit_down(cluster: ClusterDescription) -> None:
    def left() -> str:
        (note,) = pool.status().notes
        told = re.fullmatch(r"Slurm's job \d+ runs on node1, (\d:\d\d:\d\d) left", note)
        assert told is not None, note
        return told[1]

    with mgpu.parpool(1, cluster=options(cluster, time="2:00:00"), name="limited") as pool:
        first = left()
        assert "1:58:00" < first <= "2:00:00"
        wait_until(lambda: left() < first, 60, "less time")


ENDS = {
    "was cancelled": ["scancel", "{job}"],
    "was preempted by another job": ["srun", "--partition=urgent", "--exclusive", "true"],
}


@pytest.mark.parametrize("cause", ENDS)
def test_a_job_that_slurm_ends_is_named_and_not_asked_for_again(
    cluster: ClusterDescription, cause: str
) -> None:
    pool = mgpu.parpool(2, cluster=options(cluster, partition="gpu"), name="ended")
    job = job_of(pool)
    task = mgpu.parfeval(time.sleep, 600, pool=pool)
    wait_until(lambda: task.state == "running", 60)

    with (
        subprocess.Popen([word.format(job=job) for word in ENDS[cause]]),
        pytest.raises(EngineDiedError, match=rf"Slurm's job {job} {cause}"),
    ):
        task.result(NAMED_S)

    wait_until(lambda: not queue(), GONE_S, "an empty queue")  # and no job in its place
    pool.shutdown(wait_for_tasks=False)


def test_a_job_that_is_killed_at_once_is_named_as_well(cluster: ClusterDescription) -> None:
    pool = mgpu.parpool(1, cluster=cluster, name="killed")
    job = job_of(pool)
    task = mgpu.parfeval(time.sleep, 600, pool=pool)
    wait_until(lambda: task.state == "running", 60)

    subprocess.run(["scancel", "--signal=KILL", job], check=True)  # guards cannot say anything

    with pytest.raises(EngineDiedError, match=rf"Slurm's job {job} "):
        task.result(NAMED_S)
    pool.shutdown(wait_for_tasks=False)


def processes_on(node: str) -> list[int]:
    """List what runs on a node of the cluster that SLURM_CONF leads to: daemon, steps, engines."""
    own = {f"SLURM_CONF={os.environ['SLURM_CONF']}", f"SLURMD_NODENAME={node}"}
    folder = Path(os.environ["SLURM_CONF"]).parent
    found = {int((folder / f"slurmd-{node}.pid").read_text())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if own <= {f"{name}={value}" for name, value in process.environ().items()}:
                found |= {process.pid, process.ppid()}  # slurmstepd
    return list(found)


@pytest.mark.timeout(300)
def test_a_node_that_is_gone_is_named_and_another_job_takes_its_place(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("slurm")
    with running(folder, {"node1": 2, "node2": 2}) as environment:
        monkeypatch.setenv("SLURM_CONF", environment["SLURM_CONF"])
        spread = SlurmOptions(options=("--nodes=2", "--ntasks-per-node=1"))
        described = replace(clusters.find("slurm"), gpus="none", options=spread)
        # As Slurm does by itself after its SlurmdTimeout, which is five minutes.
        down = ["scontrol", "update", "nodename=node2", "state=down", "reason=power"]
        pool = mgpu.parpool(2, cluster=described, name="lossy")
        try:
            job = job_of(pool)
            there, lost = mgpu.parfeval_on_all(time.sleep, 600, pool=pool)
            wait_until(lambda: lost.state == "running", 60)

            for pid in processes_on("node2"):
                os.kill(pid, signal.SIGKILL)

            with pytest.raises(EngineDiedError) as silent:
                lost.result(NAMED_S)
            told = rf"rank 1 .*node2 has not been .*job {job} is running.* calls the node "
            assert re.search(told, str(silent.value))
            assert "scontrol show node node2" in str(silent.value)
            assert there.state == "running"

            subprocess.run(down, check=True)

            with pytest.raises(
                EngineDiedError, match=rf"Slurm's job {job} lost a node \(`sinfo -R`"
            ):
                there.result(NAMED_S)
            wait_until(
                lambda: all(engine.state == "idle" for engine in pool.engines), 60, "new ones"
            )
            assert [engine.host for engine in pool.engines] == ["node1", "node1"]
        finally:
            subprocess.run(down, check=True)  # else a test that fails leaves steps behind
            pool.shutdown(wait_for_tasks=False)
        wait_until(lambda: not queue(), GONE_S, "an empty queue")
        (folder / "slurmd-node2.pid").unlink()


@pytest.mark.timeout(300)
def test_a_job_out_of_its_time_is_named(cluster: ClusterDescription) -> None:
    pool = mgpu.parpool(1, cluster=options(cluster, time="1"), name="out of time")
    job = job_of(pool)
    task = mgpu.parfeval(time.sleep, 600, pool=pool)

    with pytest.raises(EngineDiedError, match=rf"Slurm's job {job} ran out of its time limit"):
        task.result(60 + 30 + NAMED_S)  # Slurm looks every 30 s

    assert "ask for more with `time`" in str(task.exception())
    wait_until(lambda: any("Add --restart" in note for note in pool.status().notes), 10)
    with pytest.raises(MgpuError, match=r"ran out of its time limit.*Add --restart"):
        pool.submit(abs, 1).result(10)
    pool.shutdown(wait_for_tasks=False)


@pytest.mark.usefixtures("cluster")
def test_a_job_that_waits_says_for_what_and_stop_takes_it_out_of_the_queue(
    nb: Notebook, tmp_path: Path
) -> None:
    (tmp_path / "mgpu-clusters.toml").write_text('[lab]\nkind = "slurm"\ngpus = "none"\n')
    other = holder("--exclusive")
    try:
        nb.check(f"import os; os.environ['SLURM_CONF'] = {os.environ['SLURM_CONF']!r}")
        nb.check(f"os.chdir({str(tmp_path)!r})")
        cell = nb.submit("%parpool 2 --cluster lab --name lab")
        nb.wait_for_output(cell, "waits in the partition gpu: Resources", 60)

        nb.stop()

        nb.wait(cell)
        assert cell.ename == "KeyboardInterrupt"
        wait_until(lambda: len(queue()) == 1, GONE_S, "only the other job")
    finally:
        end(other)


KERNEL = """
import sys, time
import jupyter_mgpu as mgpu
from dataclasses import replace
from jupyter_mgpu import clusters
pool = mgpu.parpool(2, cluster=replace(clusters.find("slurm"), gpus="none"))
def hold(file):
    import ctypes, os, pathlib, subprocess
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path(file + ".part").write_text(f"{os.getpid()} {os.getppid()} {child.pid}")
    os.rename(file + ".part", file)
    ctypes.PyDLL(None).sleep(600)  # with the GIL
pool.submit(hold, sys.argv[1])
time.sleep(600)
"""


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("state", ["running", "waiting"])
def test_nothing_is_left_when_the_kernel_is_killed(state: str, tmp_path: Path) -> None:
    other = holder("--exclusive") if state == "waiting" else None
    file = tmp_path / "pids"
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL, file])
    try:
        pids: list[str] = []
        if other is None:
            wait_for_file(file)
            pids = file.read_text().split()  # an engine, its guard, what it has started
        else:
            wait_until(lambda: len(queue()) == 2, 60, "the job in the queue")
        left = len(queue()) - 1

        kernel.kill()
        kernel.wait(10)

        wait_until(
            lambda: len(queue()) == left and not any(is_alive(int(pid)) for pid in pids),
            GONE_S,
            "the end of the job and of its processes",
        )
    finally:
        kernel.kill()
        if other is not None:
            end(other)


@pytest.mark.timeout(300)
def test_a_pool_outlives_the_controller_of_slurm(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("slurm")
    with running(folder, {"node1": 2}, "MessageTimeout=4\n") as environment:
        monkeypatch.setenv("SLURM_CONF", environment["SLURM_CONF"])
        with mgpu.parpool(
            2, cluster=replace(clusters.find("slurm"), gpus="none"), name="on its own"
        ) as pool:
            first, second = (engine.pid for engine in pool.engines)
            assert second is not None
            with without_controller(folder, environment):
                os.kill(second, signal.SIGKILL)
                assert pool.submit(os.getpid).result(20) == first
                wait_until(lambda: pool.engines[1].starts > 1, 60, "a try that failed")

            wait_until(lambda: pool.engines[1].state == "idle", 60, "a new engine")
            assert list(mgpu.spmd(os.getpid, pool=pool)) == [e.pid for e in pool.engines]
            assert pool.engines[0].pid == first
        wait_until(lambda: not queue(), GONE_S, "an empty queue")


def test_what_slurm_refuses_is_told_with_its_own_words(
    cluster: ClusterDescription, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what earlier tests have left is not of this one
    caplog.clear()

    with pytest.raises(PoolStartError, match=r"(?s)invalid partition.*cluster check slurm"):
        mgpu.parpool(1, cluster=options(cluster, partition="none"), name="refused")

    gc.collect()
    assert not caplog.records  # such as of an exception that nobody has looked at
    assert not queue()


def test_a_folder_that_cannot_be_written_to_is_named_before_anything_runs(
    cluster: ClusterDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    before = set(queue("%A"))  # the last one may be ending still

    with pytest.raises(PoolStartError, match=r"to .*/file/jupyter_mgpu, but Not a .*XDG_CACHE"):
        mgpu.parpool(1, cluster=cluster, name="nowhere")

    assert set(queue("%A")) <= before


def test_a_job_that_cannot_run_python_says_so(cluster: ClusterDescription) -> None:
    broken = replace(cluster, python="/no/python")

    with pytest.raises(
        PoolStartError,
        match=r"(?s)before its engines began; they should reach this host at \d+\..*/no/python",
    ):
        mgpu.parpool(1, cluster=broken, name="broken")

    assert not list((Path(os.environ["XDG_CACHE_HOME"]) / "jupyter_mgpu").glob("*.log"))


def test_engines_work_in_the_folder_that_is_described(
    cluster: ClusterDescription, tmp_path: Path
) -> None:
    with mgpu.parpool(1, cluster=replace(cluster, folder=str(tmp_path)), name="folder") as pool:
        assert pool.submit(os.getcwd).result(20) == str(tmp_path)

    with pytest.raises(PoolStartError, match="working folder /no/folder is not there on node1"):
        mgpu.parpool(1, cluster=replace(cluster, folder="/no/folder"), name="nowhere")

    wait_until(lambda: not queue(), GONE_S, "an empty queue")


def test_a_node_with_another_version_is_refused(
    cluster: ClusterDescription, tmp_path: Path
) -> None:
    (tmp_path / "jupyter_mgpu-9.9.dist-info").mkdir()
    metadata = tmp_path / "jupyter_mgpu-9.9.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: jupyter_mgpu\nVersion: 9.9\n")
    python = tmp_path / "python"
    path = f"{tmp_path}:{Path(mgpu.__file__).parents[1]}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)

    with pytest.raises(PoolStartError, match=r"jupyter_mgpu is .* here and 9\.9 on node1"):
        mgpu.parpool(1, cluster=replace(cluster, python=str(python)), name="other")

    wait_until(lambda: not queue(), GONE_S, "an empty queue")


def test_modules_reach_a_node_that_does_not_see_the_folder(
    cluster: ClusterDescription,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hidden = f"unshare --mount sh -c 'mount -t tmpfs none {tmp_path}; exec \"$@\"' sh"
    template = f"#!/bin/sh\nsrun {hidden} {{program_and_args}}\n"
    (tmp_path / "only_here.py").write_text("def where(): return 'sent'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    where = importlib.import_module("only_here").where

    with mgpu.parpool(1, cluster=options(cluster, template=template), name="unseen") as pool:
        assert pool.submit(os.listdir, str(tmp_path)).result(20) == []
        assert pool.submit(where).result(20) == "sent"

    assert "node1 does not see the notebook's folder" in capsys.readouterr().out


def test_an_own_template_may_set_the_scene(cluster: ClusterDescription) -> None:
    template = "#!/bin/sh\n#SBATCH --export=NONE\nexport SCENE=set\nsrun {program_and_args}\n"

    with mgpu.parpool(2, cluster=options(cluster, template=template), name="own") as pool:
        assert list(mgpu.spmd(lambda: os.environ.get("SCENE"))) == ["set", "set"]
        assert len(pool.engines) == 2


def test_what_a_scheduler_cannot_be_asked_is_refused(cluster: ClusterDescription) -> None:
    with pytest.raises(SelectionError, match="%parpool 4 --cluster slurm"):
        mgpu.parpool(cluster=cluster, name="no")
    with pytest.raises(SelectionError, match="--per-gpu was asked for"):
        mgpu.parpool(2, cluster=cluster, per_gpu=2, name="no")
    with pytest.raises(SelectionError, match="--gpus 0 was asked for"):
        mgpu.parpool(1, cluster=cluster, gpus="0", name="no")
    with pytest.raises(SelectionError, match=r"--wait was asked for.*queue is waited for in any"):
        mgpu.parpool(1, cluster=cluster, wait=True, name="no")
    with pytest.raises(SelectionError, match="is in no allocation"):
        mgpu.parpool(1, cluster=options(cluster, submit="srun"), name="no")


@pytest.fixture
def with_gpus(
    cluster: ClusterDescription,
    gpu_machine: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> ClusterDescription:
    """The same Slurm with four GPUs, which engines see by the stub; none is in use."""
    wait_until(lambda: not queue(), 60, "the end of the jobs of earlier tests")
    for name, value in gpu_machine(gpus(4)).items():
        monkeypatch.setenv(name, value)
    return replace(cluster, gpus="own")


def test_engines_have_the_gpus_that_slurm_gives_them_and_cuda_agrees(
    with_gpus: ClusterDescription,
) -> None:
    other = holder("--gres=gpu:1")
    try:
        with mgpu.parpool(2, cluster=with_gpus, name="gpus") as pool:
            masks = list(mgpu.spmd(lambda: os.environ["CUDA_VISIBLE_DEVICES"]))
            devices = [(engine.device, engine.proven) for engine in pool.engines]
    finally:
        end(other)

    assert masks == ["1", "2"]
    assert devices == [("GPU 1 (NVIDIA H200)", True), ("GPU 2 (NVIDIA H200)", True)]


def test_a_template_without_gpus_is_refused_by_what_cuda_shows(
    with_gpus: ClusterDescription,
) -> None:
    template = "#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=\nsrun {program_and_args}\n"

    with pytest.raises(PoolStartError, match=r"CUDA shows it: none.*gpus-per-task=\{gpus\}"):
        mgpu.parpool(1, cluster=options(with_gpus, template=template), name="none")


def test_tasks_that_see_the_same_gpus_take_one_each(with_gpus: ClusterDescription) -> None:
    template = "#!/bin/sh\n#SBATCH --gres=gpu:2\nsrun {program_and_args}\n"

    with mgpu.parpool(2, cluster=options(with_gpus, template=template), name="same") as pool:
        assert [engine.device for engine in pool.engines] == [
            "GPU 0 (NVIDIA H200)",
            "GPU 1 (NVIDIA H200)",
        ]


def test_a_gpu_that_an_engine_has_left_may_go_to_another_rank() -> None:
    taken: dict[str, int] = {}
    first, second = (scheduled_plan._Judge(rank, 1, taken) for rank in (0, 1))

    assert first(Answer(("a",), labels=["GPU 0"])) == (True, None)
    assert second(Answer(("a",), labels=["GPU 0"]))[1].startswith("GPU 0 was given to rank 1")
    assert first(Answer(("b",), labels=["GPU 1"])) == (True, None)  # it was replaced
    assert second(Answer(("a",), labels=["GPU 0"])) == (True, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5:00", 300), ("1:02:03", 3723), ("1-02:03:04", 93784), ("UNLIMITED", None), ("", None)],
)
def test_times_of_slurm_are_read(text: str, expected: float | None) -> None:
    assert slurm_queue.seconds(text) == expected


ALLOCATED = """
import json, os, signal, subprocess, time
import jupyter_mgpu as mgpu

def seen():
    names = ("RANK", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURMD_NODENAME")
    return [os.environ.get(name) for name in names]

def queue():
    return subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout.splitlines()

begun = time.monotonic()
with mgpu.parpool(2, cluster="slurm") as pool:
    first, second = pool.engines
    record = dict(
        engines=list(mgpu.spmd(seen)),
        devices=[(engine.device, engine.proven) for engine in pool.engines],
        notes=pool.status().notes,
        jobs=len(queue()),
    )
    os.kill(second.pid, signal.SIGKILL)
    while not (pool.engines[1].starts == 1 and pool.engines[1].state == "idle"):
        assert time.monotonic() - begun < 60, pool.engines
        time.sleep(0.05)
    record["later"] = list(mgpu.spmd(seen))
    record["kept"] = pool.engines[0].pid == first.pid
print("RECORD" + json.dumps(record))
"""


@pytest.mark.parametrize(
    "way", [["salloc", "--ntasks=2", "--gpus-per-task=1"], ["salloc", "--gres=gpu:2", "--ntasks=2"]]
)
def test_in_an_allocation_engines_are_a_step_of_it(
    with_gpus: ClusterDescription, way: list[str]
) -> None:
    assert with_gpus.kind == "slurm"
    command = [*way, sys.executable, "-c", ALLOCATED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout.partition("RECORD")[2])
    (job,) = {engine[2] for engine in record["engines"]}
    assert record["engines"] == [["0", "0", job, "node1"], ["1", "1", job, "node1"]]
    assert record["devices"] == [["GPU 0 (NVIDIA H200)", True], ["GPU 1 (NVIDIA H200)", True]]
    assert record["later"] == record["engines"]
    assert (record["jobs"], record["kept"]) == (1, True)
    wait_until(lambda: not queue(), GONE_S, "an empty queue")


def test_engines_run_on_several_nodes(
    two_nodes: dict[str, str],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CONF", two_nodes["SLURM_CONF"])
    spread = SlurmOptions(options=("--nodes=2", "--ntasks-per-node=2"))
    described = replace(clusters.find("slurm"), gpus="none", options=spread)

    with mgpu.parpool(4, cluster=described, name="nodes") as pool:
        hosts = [engine.host for engine in pool.engines]
        places = list(mgpu.spmd(lambda: (os.environ["RANK"], os.environ["MGPU_LOCAL_RANK"])))
        sums = list(mgpu.spmd(lambda: mgpu.comm.all_reduce(1.0)))

    assert hosts == ["node1", "node1", "node2", "node2"]
    assert places == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")]
    assert sums == [4.0] * 4
