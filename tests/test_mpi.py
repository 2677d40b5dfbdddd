"""Pools whose engines are started by a real mpirun, or by another launcher of ipyparallel."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_stubs import gpus
from open_mpi import allow_open_mpi

import jupyter_mgpu as mgpu
from jupyter_mgpu import clusters
from jupyter_mgpu.clusters import ClusterDescription, LauncherOptions, MpiOptions
from jupyter_mgpu.errors import ClusterError, PoolStartError
from jupyter_mgpu.pool import Pool
from notebooks import Notebook, is_alive, wait_until

LOCAL = "ipyparallel.cluster.launcher.LocalEngineSetLauncher"


@pytest.fixture(scope="module")
def mpi() -> Iterator[ClusterDescription]:
    """Open MPI on this machine, which has fewer cores than ranks."""
    with pytest.MonkeyPatch.context() as patch:
        allow_open_mpi(patch)
        options = ("--oversubscribe", "--mca", "some_users_own", "{}")
        yield replace(clusters.find("mpi"), options=MpiOptions("mpirun", options))


@pytest.fixture(scope="module")
def pool(mpi: ClusterDescription) -> Iterator[Pool]:
    with mgpu.parpool(2, cluster=mpi, name="mpi") as opened:
        yield opened


@pytest.mark.mpi
def test_ranks_are_those_of_mpi_and_meet_in_collectives(pool: Pool) -> None:
    places = mgpu.spmd(lambda: [os.environ[name] for name in ("RANK", "MGPU_LOCAL_RANK")])

    assert list(places) == [["0", "0"], ["1", "1"]]
    assert list(mgpu.spmd(lambda: mgpu.comm.all_reduce(1.0))) == [2.0, 2.0]
    assert len(pool.engines) == 2


@pytest.mark.mpi
@pytest.mark.usefixtures("pool")
def test_engines_may_use_all_cores_and_divide_them() -> None:
    cores = len(os.sched_getaffinity(0))

    assert list(mgpu.spmd(lambda: os.environ["OMP_NUM_THREADS"])) == [str(max(1, cores // 2))] * 2
    assert (
        list(mgpu.spmd(lambda: sorted(os.sched_getaffinity(0))))
        == [sorted(os.sched_getaffinity(0))] * 2
    )


@pytest.mark.mpi
def test_an_engine_that_dies_is_replaced_and_the_others_live_on(pool: Pool) -> None:
    first, second = pool.engines
    assert second.pid is not None

    os.kill(second.pid, signal.SIGKILL)

    wait_until(lambda: pool.engines[1].starts == 1 and pool.engines[1].state == "idle", 60)
    assert pool.engines[0].pid == first.pid
    assert list(mgpu.spmd(lambda: os.environ["MGPU_LOCAL_RANK"])) == ["0", "1"]


@pytest.mark.mpi
def test_nothing_is_left_after_the_end(mpi: ClusterDescription) -> None:
    with mgpu.parpool(2, cluster=mpi, name="short") as short:
        steps = [step._launcher.pid for step in short.owner._core.cluster._launchers[0]._steps]
        pids = [engine.pid for engine in short.engines]

    assert steps
    assert not any(is_alive(pid) for pid in [*pids, *steps] if pid is not None)


KERNEL = """
import time
import jupyter_mgpu as mgpu
from dataclasses import replace
from pathlib import Path
from jupyter_mgpu import clusters
from jupyter_mgpu.clusters import MpiOptions
described = replace(clusters.find("mpi"), options=MpiOptions("mpirun", ("--oversubscribe",)))
pool = mgpu.parpool(2, cluster=described)
pool.submit(time.sleep, 600)
launched = pool.owner._core.cluster._launchers[0]._steps[0]._launcher.pid
print("pids", launched, *(engine.pid for engine in pool.engines), flush=True)
time.sleep(600)
"""


@pytest.mark.mpi
@pytest.mark.usefixtures("mpi")
def test_nothing_is_left_when_the_kernel_is_killed() -> None:
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    pids = next(line for line in kernel.stdout if line.startswith("pids")).split()[1:]

    kernel.kill()
    kernel.wait(60)

    wait_until(lambda: not any(is_alive(int(pid)) for pid in pids), 60, "the end of all")


@pytest.mark.mpi
def test_each_rank_has_a_gpu_of_its_own(
    mpi: ClusterDescription, gpu_machine: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gpu_machine(gpus(2)).items():
        monkeypatch.setenv(name, value)

    with mgpu.parpool(2, cluster=replace(mpi, gpus="own"), name="gpus") as pool:
        assert [(engine.device, engine.proven) for engine in pool.engines] == [
            ("GPU 0 (NVIDIA H200)", True),
            ("GPU 1 (NVIDIA H200)", True),
        ]


@pytest.mark.mpi
@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize("kind", ["mpi", LOCAL])
def test_a_cell_that_starts_a_pool_shows_nothing_else(
    nb: Notebook, tmp_path: Path, kind: str
) -> None:
    more = 'options = ["--oversubscribe"]' if kind == "mpi" else ""
    file = tmp_path / "mgpu-clusters.toml"
    file.write_text(f'[lab]\nkind = "{kind}"\ngpus = "none"\n{more}\n')
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    nb.check(f"import os\nos.chdir({str(tmp_path)!r})\nos.environ |= {dict.fromkeys(names, '1')}")

    cell = nb.check("%parpool 1 --cluster lab --name lab", timeout=100)
    stop = nb.check("%parpool stop --name lab")

    said = [line for line in cell.text.splitlines() if line.strip()]
    assert said[0] == "The engines of 'lab' run without GPUs."
    assert said[1].startswith("Pool 'lab': 1 engine, ready")
    assert stop.text.strip() == "The pool 'lab' was stopped."


@pytest.mark.mpi
def test_what_mpirun_says_is_told(mpi: ClusterDescription) -> None:
    strange = replace(mpi, options=MpiOptions("mpirun", ("--no-such-option",)))

    with pytest.raises(PoolStartError, match=r"(?s)mpirun ended with exit code.*no-such-option"):
        mgpu.parpool(1, cluster=strange, name="strange")


@pytest.mark.mpi
def test_a_python_that_is_not_there_is_told(mpi: ClusterDescription) -> None:
    wrong = replace(mpi, python="/no/python", start_timeout_s=2)  # mpirun itself says nothing

    with pytest.raises(PoolStartError, match="Try `/no/python -c 'import jupyter_mgpu'`"):
        mgpu.parpool(1, cluster=wrong, name="wrong")


def test_a_missing_mpirun_is_told() -> None:
    missing = replace(clusters.find("mpi"), options=MpiOptions("no-mpirun"))

    with pytest.raises(PoolStartError, match="no-mpirun"):
        mgpu.parpool(1, cluster=missing, name="missing")


def test_any_launcher_of_ipyparallel_starts_engines() -> None:
    other = ClusterDescription("other", LOCAL, options=LauncherOptions())

    with mgpu.parpool(2, cluster=other, name="other") as pool:
        pids = [engine.pid for engine in pool.engines]
        assert list(mgpu.spmd(os.getpid)) == pids

    wait_until(lambda: not any(is_alive(pid) for pid in pids if pid is not None), 60)


def test_a_launcher_that_is_not_there_or_not_set_like_that_is_refused() -> None:
    unknown = ClusterDescription("x", "no.such.Launcher", options=LauncherOptions())
    strange = ClusterDescription("x", "pbs", options=LauncherOptions({"Queue": "gpu"}))

    with pytest.raises(ClusterError, match=r"no\.such\.Launcher cannot be imported"):
        mgpu.parpool(1, cluster=unknown, name="x")
    with pytest.raises(ClusterError, match=r"'Queue' was given.*Did you mean 'queue'"):
        mgpu.parpool(1, cluster=strange, name="x")
