"""What views draw: curves in a bounded number of points, states, and their static forms."""

import json
import math
from datetime import UTC, datetime

import nbformat
import pytest
import view_states

from jupyter_mgpu.engines import EngineState, EngineStatus, MovedBytes, PoolStatus, Rank
from jupyter_mgpu.widgets.curves import MAX_CURVES, MAX_POINTS, Curve, Curves, decimate
from jupyter_mgpu.widgets.states import parts
from jupyter_mgpu.widgets.states.gpus import GpuFacts, gpus_state
from jupyter_mgpu.widgets.states.pool import EngineReadings, pool_state
from jupyter_mgpu.widgets.states.tasks import MAX_TASKS, TaskFacts, tasks_state
from jupyter_mgpu.widgets.states.training import TrainingFacts, compare_state, training_state
from jupyter_mgpu.widgets.static import static_bundle


def status(*states: EngineState, **changes) -> PoolStatus:
    engines = tuple(
        EngineStatus(Rank(rank), 100 + rank, "CPU", state, None, None, 2**30, 1, MovedBytes())
        for rank, state in enumerate(states)
    )
    facts = {
        "name": "main",
        "kernel_pid": 1,
        "kernel_id": None,
        "notebook": "a.ipynb",
        "started": "2026-01-01T10:00:00+00:00",
        "generation": 0,
        "idle_timeout_s": None,
        "engines": engines,
        "queued": 0,
        "running": 0,
    }
    return PoolStatus(**{**facts, **changes})


def grown(values) -> Curve:
    curve = Curve()
    for step, value in enumerate(values):
        curve.add(step, value)
    return curve


def test_a_curve_is_exact_as_long_as_its_points_can_be_told_apart() -> None:
    values = [math.sin(step) for step in range(MAX_POINTS)]

    points = grown(values).points()

    assert [step for step, _ in points] == list(range(MAX_POINTS))
    assert [value for _, value in points] == [float(f"{value:.5g}") for value in values]


@pytest.mark.parametrize("length", [1_001, 4_003, 10_000, 123_457])
def test_a_long_curve_keeps_its_extremes_its_begin_and_its_end(length: int) -> None:
    values = [1.0] * length
    values[length // 3], values[length // 2] = 99.0, -99.0
    values[0], values[-1] = 5.0, 7.0

    points = grown(values).points()

    assert len(points) <= MAX_POINTS
    assert points[0] == (0, 5.0)
    assert points[-1] == (length - 1, 7.0)
    assert {(length // 3, 99.0), (length // 2, -99.0)} <= set(points)
    assert [step for step, _ in points] == sorted({step for step, _ in points})


def test_a_wave_fills_the_same_band_however_few_points_are_left() -> None:
    curve = grown(math.sin(step) for step in range(50_000))

    points = curve.points(200)

    for begin in range(0, 50_000, 5_000):
        part = [value for step, value in points if begin <= step < begin + 5_000]
        assert max(part) > 0.99
        assert min(part) < -0.99


def test_a_value_that_is_not_finite_breaks_the_line_and_is_no_extreme() -> None:
    curve = grown([1.0, math.nan, 3.0, math.inf, 2.0])

    assert curve.points() == [(0, 1.0), (1, None), (2, 3.0), (3, None), (4, 2.0)]
    assert curve.lowest == (0, 1.0)
    json.dumps(curve.points(), allow_nan=False)


def test_decimation_never_returns_more_than_asked_for() -> None:
    points = [(float(step), float(step % 7)) for step in range(1_000)]

    assert all(len(decimate(points, limit)) <= limit for limit in (4, 5, 10, 99, 400))


def test_curves_know_epochs_the_best_value_and_how_many_names_are_too_many() -> None:
    curves = Curves()
    for step in range(1, 11):
        loss = {"loss": 1 / step, "rate": 0.1}
        curves.add({"step": step, "epoch": 1.0 + (step > 5), **loss})
    curves.add({"step": 10, "epoch": 2, "validation_loss": 0.5})
    curves.add({f"extra{number}": 1.0 for number in range(100)})

    state = training_state(TrainingFacts("net", "running", steps=20), curves)

    assert state["epoch_steps"] == [1, 6]
    assert state["best"] == {"step": 10, "name": "validation_loss", "value": 0.5}
    assert state["rate"] == 0.1
    assert [curve["name"] for curve in state["curves"]][:2] == ["loss", "validation_loss"]
    assert [curve["validation"] for curve in state["curves"]][:2] == [False, True]
    assert len(state["curves"]) == MAX_CURVES


def test_a_rest_is_estimated_from_what_is_done_and_only_then() -> None:
    assert parts.eta_s(0.25, 10.0) == 30.0
    assert [parts.eta_s(share, 10.0) for share in (None, 0.0, 1.5)] == [None, None, None]


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (("starting", "starting"), "starting"),
        (("idle", "idle"), "ready"),
        (("idle", "busy"), "busy"),
        (("idle", "dead"), "degraded"),
        (("starting", "busy"), "degraded"),
    ],
)
def test_a_pools_state_is_that_of_its_engines(states: tuple[str, ...], words: str) -> None:
    assert pool_state(status(*map(EngineState, states)), {})["state"] == words


def test_a_pool_that_has_ended_says_why_and_has_no_buttons() -> None:
    state = pool_state(status(EngineState.IDLE), {}, ended="it was shut down")

    assert state["final"]
    assert state["notice"] == "The pool has ended: it was shut down."
    assert state["controls"] == []
    assert state["engines"][0]["state"] == "ended"


def test_what_is_unknown_is_not_zero_and_says_why() -> None:
    readings = EngineReadings(utilization=parts.reading(None, "not supported on MIG"))

    bundle = static_bundle(pool_state(status(EngineState.IDLE), {0: readings}))

    assert "n/a (not supported on MIG)" in bundle["text/plain"]
    assert "0 %" not in bundle["text/plain"]
    assert "n/a (not supported on MIG)" in bundle["text/html"]


def task(number: int, state: str, **facts) -> TaskFacts:
    return TaskFacts(f"pool/t{number}", f"task{number}", "pool", state, **facts)


def test_tasks_are_listed_running_then_queued_then_the_newest_that_ended() -> None:
    state = tasks_state(
        [
            task(1, "finished", finished=10.0),
            task(2, "queued", created=5.0),
            task(3, "failed", finished=20.0, error="ValueError: no"),
            task(4, "running", started=7.0, progress=0.5),
        ]
    )

    assert [entry["name"] for entry in state["tasks"]] == ["task4", "task2", "task3", "task1"]
    assert state["counts"] == {
        "queued": 1,
        "running": 1,
        "finished": 1,
        "failed": 1,
        "cancelled": 0,
    }
    assert "ValueError: no" in static_bundle(state)["text/plain"]


def test_very_many_tasks_of_many_reports_make_a_small_state() -> None:
    metrics = [{"step": step, "loss": 1 / (1 + step)} for step in range(3_000)]
    many = [
        task(number, "finished", finished=float(number), metrics=metrics, diary="line\n" * 5_000)
        for number in range(1_000)
    ]

    state = tasks_state(many)

    assert len(state["tasks"]) == MAX_TASKS
    assert state["hidden"] == 800
    assert len(json.dumps(state)) < 150_000
    assert len(state["tasks"][0]["curve"]["values"]) <= 100


def test_tasks_that_wait_beside_those_listed_are_counted() -> None:
    state = tasks_state([task(1, "queued", created=1.0)], num_more_queued=9_999)

    assert (state["counts"]["queued"], state["hidden"]) == (10_000, 9_999)


def test_the_static_form_of_a_training_is_complete_without_its_drawing() -> None:
    curves = Curves()
    for step in range(1, 5_001):
        curves.add({"step": step, "loss": 5_000 / step, "<b>odd</b>": 1.0})
    facts = TrainingFacts("<net>", "finished", "2 GPUs", step=5_000, outcome="all epochs completed")

    bundle = static_bundle(training_state(facts, curves))

    page = bundle["text/html"]
    assert "loss: 1 at step 5,000; from 5000, between 1 and 5000." in page
    assert "loss: 1 at step 5,000; from 5000, between 1 and 5000." in bundle["text/plain"]
    assert "Training ended: all epochs completed." in bundle["text/plain"]
    assert "<script" not in page
    assert "<style" not in page
    assert "<b>" not in page
    assert "&lt;net&gt;" in page
    assert page.count("<path ") == 2
    assert len(page) < 30_000


def in_a_file(state) -> int:
    """How many bytes a notebook grows by when it saves a view."""
    output = nbformat.v4.new_output("display_data", data=static_bundle(state))
    cell = nbformat.v4.new_code_cell("pool", outputs=[output])
    return len(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])))


def test_a_pool_of_eight_that_was_watched_for_long_adds_less_than_20_kb_to_the_file() -> None:
    assert in_a_file(view_states.pool(8)) < 20_000


@pytest.mark.parametrize(("num_curves", "limit"), [(1, 40_000), (4, 120_000), (16, 150_000)])
def test_a_long_training_adds_no_megabytes_to_the_file(num_curves: int, limit: int) -> None:
    curves = Curves()
    for step in range(50_000):
        row = {f"metric {n}": math.sin(step * (n + 1)) for n in range(num_curves)}
        curves.add({"step": step, "epoch": step // 100, **row})

    state = training_state(TrainingFacts("net", "finished"), curves)

    assert sum(len(curve["values"]) for curve in state["curves"]) <= 4 * MAX_POINTS
    assert in_a_file(state) < limit


def test_what_a_file_holds_has_the_same_numbers_and_gaps() -> None:
    curves = Curves()
    for step, loss in enumerate((1.5, math.nan, 2e-5)):
        curves.add({"step": step, "loss": loss})
    state = training_state(TrainingFacts("net", "running", steps=3), curves)

    held = static_bundle(state)["application/vnd.jupyter-mgpu.view.v1+json"]

    assert held["curves"][0]["values"] == "1.5,-,2e-05"
    assert held["steps"] == 3
    assert view_states.unpacked(held) == state


def test_progress_is_a_bar_in_text_too() -> None:
    state = tasks_state([task(1, "running", started=1.0, progress=0.61)])

    assert "[######....] 61 %" in static_bundle(state)["text/plain"]


def test_trainings_that_are_compared_share_a_plot_of_each_metric() -> None:
    trainings = []
    for number in range(3):
        curves = Curves()
        for step in range(10):
            curves.add({"step": step, "loss": number + 1 / (1 + step)})
        facts = TrainingFacts(f"net{number}", "running" if number else "finished")
        trainings.append(training_state(facts, curves))

    state = compare_state(trainings)

    assert not state["final"]
    assert state["metrics"] == ["loss"]
    page = static_bundle(state)["text/html"]
    assert page.count("<svg ") == 1
    assert page.count("<path ") == 3
    assert "net2: loss: 2.1 at step 9" in static_bundle(state)["text/plain"]


def test_a_lost_gpu_reads_lost_beside_the_others() -> None:
    known = parts.reading(50, None)
    gpus = [
        GpuFacts("GPU 0", 0, "GPU-0", "NVIDIA H200", "ok", utilization=known),
        GpuFacts("GPU 1", 1, "GPU-1", "NVIDIA H200", "lost"),
    ]
    host = {"cpu": parts.reading(3.0), "memory": parts.memory(2**30, 2**34)}

    text = static_bundle(gpus_state(gpus, host))["text/plain"]

    first, second = (line for line in text.splitlines() if "H200" in line)
    assert "50 %" in first
    assert "lost" in second
    assert "Host: CPU 3 %, memory 1.0 of 16.0 GiB." in text


def test_moments_are_seconds_since_the_epoch_in_any_zone() -> None:
    assert parts.seconds_of("1970-01-01T00:01:00+00:00") == 60.0
    assert parts.seconds_of("1970-01-01T00:01:00") == 60.0
    assert parts.seconds_of(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)) == 2.0
    assert parts.seconds_of(None) is None
