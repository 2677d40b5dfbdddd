"""joblib and scikit-learn on the engines."""

import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC

from jupyter_mgpu.errors import EngineDiedError, MgpuError, PackingError
from jupyter_mgpu.joblib_backend import register_joblib
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.start import parpool
from notebooks import Notebook, notebook, wait_until

TIMEOUT_S = 60


@pytest.fixture
def engines(pool: Pool) -> Iterator[Pool]:
    """The pool as joblib's backend."""
    register_joblib()
    with joblib.parallel_config(backend="mgpu", pool=pool):
        yield pool


def pids(pool: Pool) -> set[int]:
    return {engine.pid for engine in pool.engines}


def run(calls: Any, **options: Any) -> Any:
    return joblib.Parallel(**options)(calls)


def meet(folder: Path, number: int) -> int:
    """Wait until every call of two is here, each on an engine of its own."""
    (folder / str(number)).touch()
    deadline = time.monotonic() + TIMEOUT_S
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline, "the other call did not come"
        time.sleep(0.01)
    return os.getpid()


# --- what it is for --------------------------------------------------------------------


def test_scikit_learn_searches_on_the_engines(engines: Pool) -> None:
    data, labels = make_classification(200, 10, random_state=0)
    grid = {"C": [0.1, 1, 10], "kernel": ["linear", "rbf"]}
    search = GridSearchCV(SVC(random_state=0), grid, scoring=accuracy_and_place, cv=3, refit="acc")

    search.fit(data, labels)

    with joblib.parallel_config(backend="sequential"):
        alone = GridSearchCV(SVC(random_state=0), grid, cv=3).fit(data, labels)
    assert search.best_params_ == alone.best_params_
    found = search.cv_results_
    assert np.array_equal(found["mean_test_acc"], alone.cv_results_["mean_test_score"])
    assert {int(found[f"split{i}_test_pid"][j]) for i in range(3) for j in range(6)} <= pids(
        engines
    )


def accuracy_and_place(estimator: Any, data: Any, labels: Any) -> dict[str, float]:
    return {"acc": estimator.score(data, labels), "pid": os.getpid()}


@pytest.mark.usefixtures("engines")
def test_scikit_learn_cross_validates_on_the_engines() -> None:
    data, labels = make_classification(200, 10, random_state=0)

    scores = cross_val_score(LogisticRegression(), data, labels, cv=4)

    with joblib.parallel_config(backend="sequential"):
        assert np.array_equal(scores, cross_val_score(LogisticRegression(), data, labels, cv=4))


def test_all_engines_work_at_the_same_time_by_default(engines: Pool, tmp_path: Path) -> None:
    assert joblib.effective_n_jobs(-1) == joblib.effective_n_jobs(8) == engines.size == 2

    found = run(joblib.delayed(meet)(tmp_path, number) for number in range(2))

    assert set(found) == pids(engines)


def test_fewer_jobs_leave_engines_free(tmp_path: Path) -> None:
    register_joblib()
    with parpool(3, name="three") as pool:
        pool.submit_task(give_after, (0, True, tmp_path / "later"), rank=0)
        wait_until(lambda: pool.engines[0].state == "busy", TIMEOUT_S)
        with joblib.parallel_config(backend="mgpu", pool="three", n_jobs=2):
            calls = (joblib.delayed(give_after)(n, 1, tmp_path / "gate") for n in range(4))
            results = run(calls, return_as="generator", batch_size=1)
        wait_until(lambda: all(engine.state == "busy" for engine in pool.engines), TIMEOUT_S)
        (tmp_path / "later").touch()
        # What waits comes before it, if it may run there.
        assert pool.submit_task(abs, (-1,), rank=0).result(TIMEOUT_S) == 1

        assert [future.state for future in pool.tasks()].count("queued") == 2  # not for rank 0
        (tmp_path / "gate").touch()
        assert list(results) == [0, 1, 2, 3]


@pytest.mark.usefixtures("engines")
def test_one_job_and_calls_that_share_memory_stay_in_the_kernel() -> None:
    for options in ({"n_jobs": 1}, {"n_jobs": 2, "require": "sharedmem"}):
        assert set(run((joblib.delayed(os.getpid)() for _ in range(3)), **options)) == {os.getpid()}
    with pytest.raises(ValueError, match="n_jobs == 0"):
        run([joblib.delayed(abs)(1)], n_jobs=0)


def test_many_short_calls_are_put_into_batches(engines: Pool) -> None:
    parallel = joblib.Parallel(pre_dispatch="4*n_jobs")

    assert parallel(joblib.delayed(abs)(n) for n in range(-2000, 0)) == list(range(2000, 0, -1))
    assert parallel.n_dispatched_batches < 2000
    wait_until(lambda: engines.tasks() == [], TIMEOUT_S)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("return_as", ["generator", "generator_unordered"])
def test_results_come_as_they_are_ready(tmp_path: Path, return_as: str) -> None:
    gate = tmp_path / "gate"
    results = run(
        (joblib.delayed(give_after)(number, number == 3, gate) for number in range(4)),
        return_as=return_as,
        batch_size=1,
    )

    early = [next(results) for _ in range(3)]
    gate.touch()

    assert sorted(early) == [0, 1, 2]
    assert list(results) == [3]


def give_after(number: int, must_wait: Any, gate: Path) -> int:
    while must_wait and not gate.exists():
        time.sleep(0.01)
    return number


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("step", [1, 2], ids=["whole", "with gaps"])
def test_a_large_array_is_in_memory_once_whatever_the_tasks(step: int) -> None:
    array = np.random.default_rng(0).random((2048, 1024))[:, ::step]

    places = run((joblib.delayed(place_of)(array, n) for n in range(20)), batch_size=1)

    blocks, totals = zip(*places, strict=True)
    assert len(set(blocks)) == 1
    assert set(totals) == {float(array.copy().sum())}


def place_of(array: Any, _: int) -> tuple[str, float]:
    """Return the inode of the block that an array is in."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            assert "memfd:mgpu" in line
            return line.split()[4], float(array.sum())
    raise LookupError


# --- nested calls ----------------------------------------------------------------------


def inner(backend: str | None) -> dict[str, Any]:
    parallel = joblib.Parallel(n_jobs=2, backend=backend)
    where = parallel(joblib.delayed(whereabouts)() for _ in range(4))
    assert context.current() is not None
    return {
        "backend": type(parallel._backend).__name__,
        "pids": {pid for pid, _ in where},
        "pid": os.getpid(),
        "is_main": {is_main for _, is_main in where},
    }


def whereabouts() -> tuple[int, bool]:
    return os.getpid(), threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("backend", [None, "mgpu"])
def test_a_nested_call_stays_in_its_engine(engines: Pool, backend: str | None) -> None:
    for found in run(joblib.delayed(inner)(backend) for _ in range(2)):
        assert found["pids"] == {found["pid"]}
        assert found["pid"] in pids(engines)
        assert (found["backend"], found["is_main"]) == (
            ("ThreadingBackend", {False}) if backend is None else ("SequentialBackend", {True})
        )


def test_a_task_that_asks_for_the_engines_runs_in_place(engines: Pool) -> None:
    found = engines.submit(inner, "mgpu").result(TIMEOUT_S)

    assert found["pids"] == {found["pid"]}
    assert found["backend"] == "SequentialBackend"


# --- what goes wrong -------------------------------------------------------------------


def fail_or_wait(number: int, folder: Path) -> int:
    (folder / str(number)).touch()
    if number == 0:
        while not (folder / "1").exists():
            time.sleep(0.01)
        raise ValueError("the first")
    time.sleep(600)
    return number


def test_the_first_error_keeps_its_type_and_ends_the_rest(engines: Pool, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the first") as caught:
        run((joblib.delayed(fail_or_wait)(n, tmp_path) for n in range(10)), batch_size=1)

    assert any("rank" in note for note in caught.value.__notes__)
    wait_until(lambda: engines.tasks() == [], TIMEOUT_S)
    assert run(joblib.delayed(abs)(n) for n in range(5)) == list(range(5))


def test_a_time_out_ends_the_calls(engines: Pool) -> None:
    with pytest.raises(multiprocessing.TimeoutError):  # joblib's
        run((joblib.delayed(time.sleep)(600) for _ in range(3)), timeout=0.2)

    wait_until(lambda: engines.tasks() == [], TIMEOUT_S)


@pytest.mark.parametrize("position", [0, 30])
@pytest.mark.usefixtures("engines")
def test_what_cannot_be_pickled_is_told(position: int) -> None:
    items = [threading.Lock() if number == position else number for number in range(40)]

    with pytest.raises(PackingError, match="lock"):
        run((joblib.delayed(abs)(item) for item in items), batch_size=1)


@pytest.mark.usefixtures("engines")
def test_a_lost_engine_fails_the_call_and_the_next_one_works() -> None:
    with pytest.raises(EngineDiedError):
        run(joblib.delayed(os._exit)(3) for _ in range(4))

    assert run(joblib.delayed(abs)(n) for n in range(5)) == list(range(5))


def test_a_pool_that_ends_ends_the_call() -> None:
    register_joblib()
    pool = parpool(2, name="ending")
    caught: list[BaseException] = []

    def work() -> None:
        with joblib.parallel_config(backend="mgpu", pool=pool):
            try:
                run(joblib.delayed(time.sleep)(600) for _ in range(20))
            except BaseException as error:  # noqa: BLE001 - looked at below
                caught.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_until(lambda: all(engine.task for engine in pool.engines), TIMEOUT_S)
    pool.shutdown(wait_for_tasks=False)
    thread.join(TIMEOUT_S)

    assert caught
    with (
        joblib.parallel_config(backend="mgpu", pool="ending"),
        pytest.raises(MgpuError, match="ending"),
    ):
        run(joblib.delayed(abs)(n) for n in range(5))


def test_a_generator_that_is_dropped_ends_its_calls(engines: Pool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    results = run(
        (joblib.delayed(give_after)(number, number > 0, gate) for number in range(10)),
        return_as="generator",
        batch_size=1,
    )
    assert next(results) == 0

    with pytest.warns(UserWarning, match="not used|still being"):
        del results

    wait_until(lambda: engines.tasks() == [], TIMEOUT_S)


# --- in a notebook ---------------------------------------------------------------------


def test_a_notebook_needs_nothing_but_the_extension(nb: Notebook) -> None:
    assert nb.value("'joblib' in __import__('sys').modules") is False
    nb.check("import joblib, os\npool = mgpu.current_pool()\ndef here(_): return os.getpid()")
    nb.check(
        "with joblib.parallel_config(backend='mgpu'):\n"
        "    found = joblib.Parallel()(joblib.delayed(here)(n) for n in range(20))"
    )

    assert nb.value("set(found) <= {engine.pid for engine in pool.engines}")


def test_the_extension_may_come_after_joblib() -> None:
    with notebook() as opened:
        opened.check("import joblib, os\n%load_ext jupyter_mgpu\n%parpool 2")
        cell = opened.check(
            "found = joblib.Parallel(backend='mgpu')(joblib.delayed(os.getpid)() for _ in range(4))"
            "\nprint(os.getpid() in found)"
        )
        assert cell.stdout.strip() == "False"


def test_a_stop_ends_a_call_of_joblib(nb: Notebook) -> None:
    nb.check("import joblib, time\npool = mgpu.current_pool()")
    cell = nb.submit(
        "with joblib.parallel_config(backend='mgpu'):\n"
        "    print('begun', flush=True)\n"
        "    joblib.Parallel()(joblib.delayed(time.sleep)(600) for _ in range(10))"
    )
    nb.wait_for_output(cell, "begun")

    nb.stop()

    assert nb.wait(cell).ename == "KeyboardInterrupt"
    assert nb.value("len(pool.tasks())") == 0


def test_registering_does_not_import_joblib() -> None:
    code = "import sys, jupyter_mgpu as m; m.register_joblib(); print('joblib' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert re.fullmatch(r"False\s*", done.stdout)
