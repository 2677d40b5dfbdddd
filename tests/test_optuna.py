"""Optuna's trials on the engines: spread over all, one at a time on each."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from jupyter_mgpu.calls import parfeval
from jupyter_mgpu.futures import TaskFuture, fetch_next
from jupyter_mgpu.pool import Pool
from notebooks import Notebook

NUM_TRIALS = 8
TIMEOUT_S = 60

optuna.logging.set_verbosity(optuna.logging.WARNING)


def train(x: float, meeting: Path) -> dict[str, float]:
    """Wait until two ranks have begun, so that both must be in use; return loss and times."""
    from jupyter_mgpu.on_engine import context

    begun = time.monotonic()
    (meeting / str(context.require().rank)).touch()
    while len(list(meeting.iterdir())) < 2:
        assert time.monotonic() < begun + TIMEOUT_S, "the other engine was not used"
        time.sleep(0.01)
    return {"loss": (x - 2) ** 2, "begun": begun, "ended": time.monotonic()}


def record(trial: optuna.Trial, future: TaskFuture) -> float:
    result: dict[str, float] = future.result()
    trial.set_user_attr("rank", future.rank)
    trial.set_user_attr("times", (result["begun"], result["ended"]))
    return result["loss"]


def optimize(study: optuna.Study, pool: Pool, meeting: Path) -> None:
    executor = pool.executor()

    def objective(trial: optuna.Trial) -> float:
        return record(trial, executor.submit(train, trial.suggest_float("x", -5, 5), meeting))

    study.optimize(objective, n_trials=NUM_TRIALS, n_jobs=pool.size)


def ask_and_tell(study: optuna.Study, pool: Pool, meeting: Path) -> None:
    trials: dict[TaskFuture, optuna.Trial] = {}

    def start() -> None:
        trial = study.ask()
        x = trial.suggest_float("x", -5, 5)
        trials[parfeval(train, x, meeting, pool=pool)] = trial

    for _ in range(pool.size):
        start()
    for num_left in range(NUM_TRIALS - 1, -1, -1):
        future = fetch_next(trials)
        study.tell(trials[future], record(trials[future], future))
        if num_left >= pool.size:
            start()


@pytest.mark.parametrize("search", [optimize, ask_and_tell])
def test_trials_use_all_engines_and_never_two_at_once_the_same(
    pool: Pool, tmp_path: Path, search: Callable[[optuna.Study, Pool, Path], None]
) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    search(study, pool, tmp_path)

    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * NUM_TRIALS
    assert study.best_value == min((trial.params["x"] - 2) ** 2 for trial in study.trials)
    ranks = {trial.user_attrs["rank"] for trial in study.trials}
    assert ranks == {0, 1}
    for rank in ranks:
        times = sorted(t.user_attrs["times"] for t in study.trials if t.user_attrs["rank"] == rank)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(times))


def test_a_failing_trial_fails_alone(pool: Pool) -> None:
    executor = pool.executor()

    def objective(trial: optuna.Trial) -> float:
        return float(executor.submit(divmod, 1, trial.number % 2).result()[0])

    study = optuna.create_study()
    study.optimize(objective, n_trials=4, n_jobs=2, catch=ZeroDivisionError)

    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"] * 2


def test_a_stop_ends_a_search_by_ask_and_tell(nb: Notebook) -> None:
    nb.check("import optuna, time\nstudy = optuna.create_study()")
    nb.check(
        "def train(x):\n    time.sleep(600)\n"
        "def search():\n"
        "    with mgpu.current_pool().executor() as executor:\n"
        "        trials = [study.ask() for _ in range(8)]\n"
        "        xs = [trial.suggest_float('x', 0, 1) for trial in trials]\n"
        "        print('begun', flush=True)\n"
        "        for trial, loss in zip(trials, executor.map(train, xs)):\n"
        "            study.tell(trial, loss)"
    )
    cell = nb.submit("search()")
    nb.wait_for_output(cell, "begun")

    nb.stop()

    assert nb.wait(cell).ename == "KeyboardInterrupt"
    assert nb.value("len(mgpu.current_pool().tasks())") == 0
