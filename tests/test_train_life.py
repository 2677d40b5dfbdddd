"""A training's life: Stop, futures, checkpoints, deaths, memory."""

import os
import re
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from training import ENDLESS, begin, die_once, difference, fit, mlp, samples

from jupyter_mgpu import TrainingOptions, train
from jupyter_mgpu.errors import EngineDiedError
from jupyter_mgpu.futures import CancelledError
from jupyter_mgpu.pool import Pool
from notebooks import Notebook, notebook, wait_for_file, wait_until

LEAST = 1e-10


def dropping() -> nn.Module:
    first, act, last = mlp()
    return nn.Sequential(first, act, nn.Dropout(0.3), last).double()


# --- checkpoints -------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "validation": samples(41),
    "average_decay": 0.9,
    "warm_up": 15,
    "clip_norm": 1.0,
    "optimizer": "sgd",
}


@pytest.mark.parametrize("pools", [0, 1])
def test_a_resumed_training_is_the_same_to_the_last_bit(
    trio: Pool, tmp_path: Path, pools: int
) -> None:
    pool = trio if pools else None
    whole = fit(dropping(), samples(), pool, max_epochs=4, **SETTINGS)
    fit(dropping(), samples(), pool, max_epochs=2, checkpoint_folder=tmp_path, **SETTINGS)

    torch.manual_seed(99)  # what the notebook has drawn meanwhile does not count
    again = fit(dropping(), samples(), pool, max_epochs=4, resume=tmp_path, **SETTINGS)

    assert difference(again, whole) == 0


def difference_after_a_stop(pool: Pool, folder: Path, **settings: Any) -> float:
    """Compare a training that was stopped within an epoch and resumed with a whole one."""
    whole = fit(dropping(), samples(), pool, max_epochs=4, **settings)
    stop = [lambda row: row["step"] == 13]
    options = {"max_epochs": 4, "checkpoint_folder": folder, **settings}
    _, stopped = fit(dropping(), samples(), pool, callbacks=stop, **options)
    assert stopped.stopped == "stopped when asked to"
    assert 13 < len(stopped.steps) < 18
    again = fit(dropping(), samples(), pool, resume=True, **options)
    # The stop has validated the network as it was, which the whole training did not.
    again[1].validations = [row for row in again[1].validations if row["step"] % 10 == 0]
    return difference(again, whole)


def test_a_stop_within_an_epoch_resumes_to_the_last_bit(trio: Pool, tmp_path: Path) -> None:
    assert difference_after_a_stop(trio, tmp_path, **SETTINGS) == 0


def test_another_number_of_ranks_goes_on_with_the_same_training(trio: Pool, tmp_path: Path) -> None:
    whole = fit(mlp(), samples(), max_epochs=4, **SETTINGS)
    fit(mlp(), samples(), trio, max_epochs=2, checkpoint_folder=tmp_path, **SETTINGS)

    for pool, load in ((None, None), (trio, 2)):
        again = fit(
            mlp(), samples(), pool, worker_load=load, max_epochs=4, resume=tmp_path, **SETTINGS
        )
        assert difference(again, whole) < LEAST


def test_the_newest_checkpoints_stay_and_any_can_be_chosen(tmp_path: Path) -> None:
    options = {"checkpoint_folder": tmp_path, "keep_checkpoints": 3, "checkpoint_frequency": 2}
    whole = fit(mlp(), samples(), max_epochs=9, **options)

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"checkpoint-{step:09d}.pt" for step in (40, 60, 80)]
    again = fit(mlp(), samples(), max_epochs=9, resume=tmp_path / names[0])
    assert difference(again, whole) == 0


def test_what_is_no_checkpoint_is_refused(trio: Pool, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    for pool in (None, trio):
        with pytest.raises(FileNotFoundError, match="no such file"):
            fit(mlp(), samples(), pool, resume=tmp_path)
        with pytest.raises(ValueError, match="is no checkpoint of a training"):
            fit(mlp(), samples(), pool, resume=tmp_path / "junk")


# --- a rank that dies --------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "has_older"), [(15, False), (5, True), (15, True)])
def test_a_training_goes_on_after_a_death_where_that_is_allowed(
    trio: Pool, tmp_path: Path, capsys: Any, batch: int, *, has_older: bool
) -> None:
    whole = fit(dropping(), samples(), trio, max_epochs=3)
    options: dict[str, Any] = {"checkpoint_folder": tmp_path, "max_restarts": 1, "max_epochs": 3}
    if has_older:  # with later steps than this training comes to before it is killed
        fit(dropping(), samples(), trio, seed=7, **options)
    forward = partial(die_once, str(tmp_path / "count"), batch)

    again = fit(dropping(), samples(), trio, forward=forward, **options)

    assert difference(again, whole) == 0
    assert re.search(r"rank 1 .*SIGKILL.* The training starts again\.", capsys.readouterr().out)


class Fatal:
    """Kills the process that writes it."""

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class DyingOptimizer(torch.optim.SGD):
    """Kills its rank in the middle of its third checkpoint, once."""

    def __init__(self, folder: Path, parameters: Any) -> None:
        super().__init__(parameters, 0.01)
        self.folder = folder

    def state_dict(self) -> dict[str, Any]:
        state, mark = super().state_dict(), self.folder / "died"
        is_third = len(list(self.folder.glob("*.pt"))) == 2
        if os.environ["RANK"] == "0" and is_third and not mark.exists():
            mark.touch()
            state["last"] = Fatal()
        return state


def test_a_death_while_a_checkpoint_is_written_leaves_those_before_it_whole(
    trio: Pool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"checkpoint_folder": tmp_path, "keep_checkpoints": 5}
    options |= {"optimizer": partial(DyingOptimizer, tmp_path), "max_epochs": 4}

    with pytest.raises(EngineDiedError, match=r"The engine of rank 0 .*SIGKILL"):
        fit(dropping(), samples(), trio, **options)

    names = [f"checkpoint-{step:09d}.pt" for step in (10, 20, 30, 40)]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == names[:2]
    assert len(list(tmp_path.glob("*.draft"))) == 1
    again = fit(dropping(), samples(), trio, resume=True, **options)
    assert difference(again, fit(dropping(), samples(), trio, **options)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "died"]


def test_a_death_is_told_with_rank_and_cause(trio: Pool, tmp_path: Path) -> None:
    forward = partial(die_once, str(tmp_path / "count"), 15)

    with pytest.raises(EngineDiedError, match=r"The engine of rank 1 .*SIGKILL"):
        fit(mlp(), samples(), trio, max_epochs=ENDLESS, forward=forward)

    assert time.monotonic() - float((tmp_path / "count.died").read_text()) < 5
    assert len(fit(mlp(), samples(), trio)[1].steps) == 20


# --- in the background -------------------------------------------------------------------


def test_a_future_has_metrics_and_ends_when_asked_to(trio: Pool) -> None:
    future = begin(trio)
    assert future.running()
    assert future.metrics[0].keys() == {"step", "epoch", "rate", "loss"}
    assert 0 < future.progress < 1

    future.request_stop()

    _, history = future.result(60)
    assert history.stopped == "stopped when asked to"
    assert len(history.steps) > 20


@pytest.mark.parametrize("where", ["parallel", "auto"])
def test_a_training_ends_after_its_epoch_when_asked_to_and_goes_on_to_the_last_bit(
    trio: Pool, tmp_path: Path, where: str
) -> None:
    asked = {"execution_environment": where, "mini_batch_size": 20, "verbose": False}
    options = TrainingOptions(
        max_epochs=ENDLESS, checkpoint_folder=tmp_path, checkpoint_frequency=1000, **asked
    )
    arguments = samples(), nn.CrossEntropyLoss()
    future = train(dropping(), *arguments, options, pool=trio, wait=False)
    wait_until(lambda: len(future.metrics) > 13, 60, "steps of the second epoch")

    future.request_stop(after="epoch")

    _, history = future.result(60)
    assert history.stopped == "stopped after the epoch when asked to"
    assert len(history.steps) == 10 * history.steps[-1]["epoch"]
    more = {"max_epochs": history.steps[-1]["epoch"] + 1, **asked}
    again = train(dropping(), *arguments, TrainingOptions(resume=tmp_path, **more), pool=trio)
    whole = train(dropping(), *arguments, TrainingOptions(**more), pool=trio)
    assert difference(again, whole) == 0
    assert again[1]["loss"][: len(history.steps)] == history["loss"]


@pytest.mark.parametrize("wish", ["request_stop", "cancel"])
def test_a_future_takes_a_wish_before_the_training_runs(
    trio: Pool, tmp_path: Path, wish: str
) -> None:
    go = tmp_path / "go"
    busy = [trio.submit_task(wait_for_file, (go,), rank=rank) for rank in trio.ranks]
    options = TrainingOptions(
        execution_environment="parallel", max_epochs=ENDLESS, mini_batch_size=20, verbose=False
    )

    future = train(mlp(), samples(), nn.CrossEntropyLoss(), options, pool=trio, wait=False)
    getattr(future, wish)()
    go.touch()

    if wish == "cancel":
        with pytest.raises(CancelledError):
            future.result(60)
    else:
        assert future.result(60)[1].stopped == "stopped when asked to"
    assert [task.result(60) for task in busy] == [None] * 3
    assert len(fit(mlp(), samples(), trio)[1].steps) == 20


def test_a_training_that_is_cancelled_while_it_is_submitted_ends(
    trio: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, is_cancelled = trio.submission.gang, threading.Event()

    def submit_later(task: Any, listener: Any) -> None:
        is_cancelled.wait(60)
        submit(task, listener)

    monkeypatch.setattr(trio.submission, "gang", submit_later)
    options = TrainingOptions(
        execution_environment="parallel", max_epochs=ENDLESS, mini_batch_size=20, verbose=False
    )
    future = train(mlp(), samples(), nn.CrossEntropyLoss(), options, pool=trio, wait=False)
    wait_until(lambda: future._control.owned_id, 60, "the training's task")
    future.cancel()
    monkeypatch.undo()

    is_cancelled.set()

    assert len(fit(mlp(), samples(), trio)[1].steps) == 20


def test_a_cancelled_training_frees_its_ranks(trio: Pool) -> None:
    pids = [engine.pid for engine in trio.engines]
    future = begin(trio)

    assert future.cancel()

    assert future.cancelled()
    assert len(fit(mlp(), samples(), trio)[1].steps) == 20
    assert [engine.pid for engine in trio.engines] == pids


def test_a_failed_training_is_in_its_future_and_frees_its_ranks(trio: Pool) -> None:
    future = begin(trio, forward=lambda net, batch: (net(batch[0]), 1 / 0))

    assert isinstance(future.exception(60), ZeroDivisionError)
    assert len(fit(mlp(), samples(), trio)[1].steps) == 20


def test_one_network_in_the_background_trains_on_one_engine(trio: Pool) -> None:
    options = TrainingOptions(max_epochs=2, mini_batch_size=20, learning_rate=0.01)

    future = train(mlp(), samples(), nn.CrossEntropyLoss(), options, pool=trio, wait=False)

    assert difference(future.result(60), fit(mlp(), samples())) == 0


def children(pool: Pool) -> set[int]:
    engines = [psutil.Process(engine.pid) for engine in pool.engines]
    return {child.pid for engine in engines for child in engine.children()}


def test_the_loaders_of_a_training_end_with_it(trio: Pool) -> None:
    before = children(trio)
    future = begin(trio, data=TensorDataset(*samples()), num_workers=1)
    assert len(children(trio) - before) == 3

    future.request_stop()

    assert future.result(60)[1].stopped == "stopped when asked to"
    wait_until(lambda: children(trio) <= before, 60, "the end of the loaders")


# --- memory ------------------------------------------------------------------------------


def pss_mb(pids: list[int]) -> float:
    """Memory of processes without files: their share of a library grows as others end."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    kb = re.findall(r"^Pss_(?:Anon|Shmem): +(\d+)", "".join(texts), re.MULTILINE)
    assert len(kb) == 2 * len(pids)
    return sum(map(int, kb)) / 1000


def note_memory(path: str, pids: list[int], row: dict[str, Any]) -> None:
    if row["step"] == 1:
        Path(path).write_text(str(pss_mb(pids)))


def test_a_large_data_set_is_in_memory_once_per_host(trio: Pool, tmp_path: Path) -> None:
    inputs = torch.zeros(100_000, 250)  # 100 MB
    targets = torch.zeros(len(inputs), dtype=torch.long)
    pids = [engine.pid for engine in trio.engines]
    fit(nn.Linear(250, 3), (inputs[:500], targets[:500]), trio)
    before = pss_mb(pids)

    watch = partial(note_memory, str(tmp_path / "pss"), pids)
    fit(nn.Linear(250, 3), (inputs, targets), trio, mini_batch_size=10_000, callbacks=[watch])

    assert float((tmp_path / "pss").read_text()) - before < 170


# --- in a notebook -----------------------------------------------------------------------

PREPARE = """
%load_ext jupyter_mgpu
import jupyter_mgpu as mgpu
import builtins, os, pathlib, time, torch
from torch import nn
%parpool 2
data = torch.randn(200, 12), torch.zeros(200, dtype=torch.long)
net, loss = nn.Linear(12, 3), nn.CrossEntropyLoss()
def counted(net, batch):
    builtins.steps = getattr(builtins, "steps", 0) + net.training
    return net(batch[0]), batch[1]
def fit(where, **options):
    settings = dict(max_epochs=10**6, mini_batch_size=20, verbose_frequency=10, forward=counted)
    return mgpu.train(net, data, loss, mgpu.TrainingOptions(
        execution_environment=where, **settings | options))
"""


@pytest.fixture(scope="module")
def nb():
    with notebook() as opened:
        opened.check(PREPARE, timeout=120)
        yield opened


def stop_when(nb: Notebook, code: str, text: str) -> Any:
    """Run a cell, press Stop once it shows some text, wait for its end."""
    cell = nb.submit(code)
    nb.wait_for_output(cell, text, 60)
    nb.stop()
    return nb.wait(cell)


@pytest.mark.parametrize("where", ["auto", "multi-gpu"])
def test_the_first_stop_returns_the_network_as_it_is(nb: Notebook, where: str) -> None:
    nb.check("%%spmd\nimport builtins\nbuiltins.steps = 0")

    cell = stop_when(nb, f"trained, history = fit({where!r})", "iteration")

    assert cell.ok, cell.traceback
    assert "Training ended: stopped when asked to." in cell.text
    assert nb.value("history.stopped") == "stopped when asked to"
    assert nb.value("all((a != b).any() for a, b in zip(trained.parameters(), net.parameters()))")
    if where == "multi-gpu":
        nb.check("%%spmd\ncount = builtins.steps")
        counts = nb.value("list(mgpu.current_pool()['count'])")
        # The first batch was tried twice before.
        assert counts == [nb.value("len(history.steps)") + 2] * 2


SLOW = (
    "def slow(net, batch):\n"
    "    print('in it', flush=True)\n"
    "    time.sleep(99)\n"
    "    return net(batch[0]), batch[1]\n"
)


@pytest.mark.parametrize("where", ["auto", "multi-gpu"])
def test_a_second_stop_interrupts(nb: Notebook, where: str) -> None:
    cell = nb.submit(SLOW + f"fit({where!r}, forward=slow)")
    nb.wait_for_output(cell, "in it", 60)
    nb.stop()
    nb.wait_for_output(cell, "a second Stop interrupts", 60)
    begun = time.monotonic()
    nb.stop()
    nb.wait(cell, 10)

    assert cell.ename == "KeyboardInterrupt"
    assert time.monotonic() - begun < 2.5
    nb.check(f"fit({where!r}, max_epochs=1)")


def test_a_stop_while_the_ranks_are_busy_ends_the_wait(nb: Notebook, tmp_path: Path) -> None:
    nb.check(
        f"go = pathlib.Path({str(tmp_path / 'go')!r})\n"
        "def wait():\n"
        "    while not go.exists(): time.sleep(0.02)\n"
        "busy = mgpu.parfeval(wait)"
    )

    cell = stop_when(nb, "fit('multi-gpu')", "waiting for rank")

    assert cell.ename == "KeyboardInterrupt"
    (tmp_path / "go").touch()
    assert nb.value("busy.result()") is None


def test_the_cell_shows_where_it_trains_a_bar_and_a_table(nb: Notebook) -> None:
    cell = nb.check(
        "_ = fit('multi-gpu', max_epochs=4, validation=data, metrics=['accuracy'],\n"
        "        scale='linear')"
    )

    lines = cell.text.splitlines()
    (header,) = [line for line in lines if line.startswith("iteration")]
    assert "Training on 2 CPU engines of the pool 'pool'." in lines
    assert "The ranks exchange by gloo over lo." in lines
    assert any(line.startswith("scale='linear': 40 samples per step") for line in lines)
    assert re.search(r"epoch +time +learning rate +loss +validation loss +accuracy", header)
    assert re.search(r"^11 +3 +00:00:\d\d", cell.text, re.MULTILINE)
    assert "Training ended: all epochs completed." in lines


def test_a_hint_is_shown_where_the_ranks_mostly_wait_for_each_other(nb: Notebook) -> None:
    cell = nb.check(
        "def late(net, batch):\n"
        "    time.sleep(0.1 * int(os.environ['RANK']))\n"
        "    return net(batch[0]), batch[1]\n"
        "_, history = fit('multi-gpu', max_epochs=1, forward=late)"
    )

    assert nb.value("history.exchange_share") > 0.5
    assert re.search(r"^The ranks spent \d\d% of the time in exchange", cell.text, re.MULTILINE)
    assert "Small networks and batches are quicker on one device" in cell.text


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_sets_of_the_notebook_are_loaded_by_workers(nb: Notebook, method: str) -> None:
    nb.check(
        "class Pairs(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 200\n"
        "    def __getitem__(self, row): return data[0][row], data[1][row]\n"
        f"loader = torch.utils.data.DataLoader(\n"
        f"    Pairs(), 20, num_workers=1, multiprocessing_context={method!r})\n"
        "torch.manual_seed(1)\n"
    )

    nb.check(
        "_, loaded = mgpu.train(net, loader, loss, mgpu.TrainingOptions(\n"
        "    execution_environment='multi-gpu', max_epochs=2, shuffle='every-epoch'))",
        timeout=100,
    )

    nb.check("_, direct = fit('multi-gpu', max_epochs=2)")
    assert nb.value("loaded['loss'] == direct['loss']")
