"""Pools of Slurm and of MPI that become larger or smaller."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from gpu_stubs import gpus
from open_mpi import allow_open_mpi
from slurm import queue, slurm  # noqa: F401 - a fixture

import jupyter_mgpu as mgpu
from jupyter_mgpu import clusters
from jupyter_mgpu.clusters import ClusterDescription, LauncherOptions, MpiOptions
from jupyter_mgpu.errors import PoolStartError, SelectionError
from jupyter_mgpu.opening import scheduled_plan
from notebooks import Notebook, is_alive, wait_until

LOCAL = "ipyparallel.cluster.launcher.LocalEngineSetLauncher"
GONE_S = 60


def world() -> list[str]:
    names = ("RANK", "WORLD_SIZE", "MGPU_LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
    return [os.environ.get(name, "") for name in names]


def sums() -> list[float]:
    return list(mgpu.spmd(lambda: mgpu.comm.all_reduce(1.0)))


@pytest.fixture
def machine(gpu_machine: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs here."""
    for name, value in gpu_machine(gpus(4)).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def with_slurm(
    slurm: dict[str, str],  # noqa: F811 - the fixture
    machine: None,  # noqa: ARG001 - before the kernel of a test
    monkeypatch: pytest.MonkeyPatch,
) -> ClusterDescription:
    """Slurm with one node of four GPUs."""
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    return clusters.find("slurm")


@pytest.mark.slurm
def test_a_pool_of_slurm_grows_by_jobs_of_one_task_that_end_when_it_shrinks(
    with_slurm: ClusterDescription,
) -> None:
    with mgpu.parpool(2, cluster=with_slurm, name="jobs") as pool:
        pids = [engine.pid for engine in pool.engines]

        assert mgpu.parpool(4, name="jobs") is pool

        assert [engine.pid for engine in pool.engines][:2] == pids
        seen = list(mgpu.spmd(world))
        assert [each[:3] for each in seen] == [[str(r), "4", str(r)] for r in range(4)]
        assert sorted(each[3] for each in seen) == ["0", "1", "2", "3"]
        assert [engine.proven for engine in pool.engines] == [True] * 4
        assert len(queue()) == len(pool.status().notes) == 3

        mgpu.parpool(3, name="jobs")
        wait_until(lambda: len(queue()) == 2, GONE_S, "the end of one job")
        wait_until(lambda: len(pool.status().notes) == 2, GONE_S, "no note of it")

        mgpu.parpool(4, name="jobs")
        assert sums() == [4.0] * 4
    wait_until(lambda: not queue(), GONE_S, "an empty queue")


@pytest.mark.slurm
@pytest.mark.usefixtures("with_slurm")
def test_a_job_that_waits_is_taken_out_of_the_queue_by_stop_and_the_pool_is_as_it_was(
    nb: Notebook,
) -> None:
    nb.check(f"import os; os.environ['SLURM_CONF'] = {os.environ['SLURM_CONF']!r}")
    nb.check("import jupyter_mgpu as mgpu")
    for name in ("LD_LIBRARY_PATH", "MGPU_LIBCUDA", "MGPU_STUB_SCENARIO"):
        nb.check(f"os.environ[{name!r}] = {os.environ[name]!r}")
    nb.check("%parpool 3 --cluster slurm --name lab")
    nb.check("%%spmd\nx = 5")

    cell = nb.submit("%parpool 5 --name lab")  # there are four GPUs
    nb.wait_for_output(cell, "waits in the partition gpu: ", 30)
    assert len(queue()) == 3
    nb.stop()
    nb.wait(cell)

    assert cell.ename == "KeyboardInterrupt"
    wait_until(lambda: len(queue()) == 1, GONE_S, "only the pool's first job")
    assert nb.check("%%spmd\nworld_size, x").ok
    assert nb.check("mgpu.current_pool().size").result == "3"
    nb.check("%%spmd\ndel x")
    nb.check("%parpool 4 --name lab")
    assert nb.check("list(mgpu.spmd(lambda: mgpu.comm.all_reduce(1.0)))").result == str([4.0] * 4)
    nb.check("%parpool stop --name lab")
    wait_until(lambda: not queue(), GONE_S, "an empty queue")


ALLOCATED = """
import json, os
import jupyter_mgpu as mgpu

def world():
    names = ("RANK", "WORLD_SIZE", "MGPU_LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")
    return [os.environ[name] for name in names]

def look():
    return [list(mgpu.spmd(world)), [(engine.device, engine.proven) for engine in pool.engines]]

with mgpu.parpool(1, cluster="slurm") as pool:
    looks = []
    for size in (3, 2, 3):
        assert mgpu.parpool(size) is pool
        looks.append(look())
    try:
        mgpu.parpool(4)
    except mgpu.errors.PoolStartError as error:
        refused = str(error)
    looks.append(look())
    sums = list(mgpu.spmd(lambda: mgpu.comm.all_reduce(1.0)))
print("RECORD" + json.dumps([looks, refused, sums]))
"""


@pytest.mark.slurm
@pytest.mark.usefixtures("with_slurm")
def test_a_pool_in_an_allocation_grows_by_another_step_of_it() -> None:
    command = ["salloc", "--ntasks=3", "--gpus-per-task=1", sys.executable, "-c", ALLOCATED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    (larger, smaller, again, last), refused, sums = json.loads(done.stdout.partition("RECORD")[2])
    job = larger[0][0][4]
    for look, size in ((larger, 3), (smaller, 2), (again, 3), (last, 3)):
        assert look[0] == [[str(r), str(size), str(r), str(r), job] for r in range(size)]
        assert look[1] == [[f"GPU {r} (NVIDIA H200)", True] for r in range(size)]
    assert "srun ended with exit code" in refused
    assert sums == [3.0] * 3
    wait_until(lambda: not queue(), GONE_S, "an empty queue")


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterDescription]:
    """Open MPI on this machine, which has fewer cores than ranks."""
    allow_open_mpi(monkeypatch)
    return replace(clusters.find("mpi"), options=MpiOptions("mpirun", ("--oversubscribe",)))


@pytest.mark.mpi
@pytest.mark.usefixtures("machine")
def test_a_pool_of_mpi_grows_by_another_set_on_the_next_gpus(mpi: ClusterDescription) -> None:
    with mgpu.parpool(1, cluster=replace(mpi, gpus="own"), name="mpi") as pool:
        for size in (3, 2, 4):
            assert mgpu.parpool(size, name="mpi") is pool
            assert list(mgpu.spmd(world)) == [
                [str(rank), str(size), str(rank), str(rank)] for rank in range(size)
            ]
        pids = [engine.pid for engine in pool.engines]
        assert [engine.device[:5] for engine in pool.engines] == [f"GPU {r}" for r in range(4)]
        assert pool.size == 4
        with pytest.raises(PoolStartError, match="rank 4"):
            mgpu.parpool(5, name="mpi")
        assert [engine.pid for engine in pool.engines] == pids
        assert sums() == [4.0] * 4

    wait_until(lambda: not any(is_alive(pid) for pid in pids if pid), GONE_S, "the end of all")


@pytest.mark.mpi
def test_of_two_that_make_a_pool_larger_at_once_the_later_one_is_told(
    mpi: ClusterDescription,
) -> None:
    with mgpu.parpool(1, cluster=mpi, name="twice") as pool:
        asked = (replace(pool.request, n=n, first_rank=1) for n in (1, 2))
        first, second = [scheduled_plan.plan_more_ranks(each, pool.owner, mpi) for each in asked]

        pool.owner.grow(first.engines, first.on_turn).result(60)
        with pytest.raises(PoolStartError, match="another size at the same time"):
            pool.owner.grow(second.engines, second.on_turn).result(60)

        assert sums() == [2.0, 2.0]


def test_a_pool_of_any_other_launcher_grows_and_shrinks() -> None:
    other = ClusterDescription("other", LOCAL, options=LauncherOptions())

    with mgpu.parpool(1, cluster=other, name="other") as pool:
        for size in (2, 1, 2):
            mgpu.parpool(size, name="other")
            assert list(mgpu.spmd(os.getpid)) == [engine.pid for engine in pool.engines]
        assert sums() == [2.0, 2.0]
        with pytest.raises(SelectionError, match="Say how many engines"):
            mgpu.parpool((2, 4), name="other")
