"""The history: ten minutes in memory that does not grow, gaps as None."""

from types import SimpleNamespace

import pytest

from jupyter_mgpu.monitor import sampler as sampling
from jupyter_mgpu.monitor.history import MOST_COLUMNS, MOST_POINTS, History, Series


def filled(interval_s: float, num_ticks: int) -> History:
    history = History()
    for tick in range(num_ticks):
        history.add(tick * interval_s, {"busy": tick, "power": None})
    return history


@pytest.mark.parametrize(
    ("interval_s", "num_kept"), [(0.5, 1200), (0.75, 801), (1, 601), (10, 600), (60, 600)]
)
def test_it_keeps_ten_minutes_or_six_hundred_values(interval_s, num_kept):
    history = filled(interval_s, 5000)

    assert len(history) == num_kept <= MOST_POINTS
    series = history.series("busy", step_s=interval_s, num_points=5000)
    assert len(series.values) == num_kept
    assert series.values[-1] == 4999


def test_values_are_in_equal_steps_newest_last():
    assert filled(2, 50).series("busy", step_s=2, num_points=4) == Series(2, (46, 47, 48, 49))


def test_ticks_that_are_a_little_late_leave_no_gap():
    history = History()
    for tick in range(100):
        history.add(tick + 0.4 * (tick % 2), {"busy": tick})

    values = history.series("busy", step_s=1, num_points=50).values

    assert None not in values


def test_times_without_a_sampler_are_gaps():
    history = History()
    for now_s in (0, 1, 2, 7, 8):
        history.add(now_s, {"busy": now_s})

    values = history.series("busy", step_s=1, num_points=100).values

    assert values == (0, 1, 2, None, None, None, None, 7, 8)


def test_a_series_reaches_up_to_now():
    history = filled(1, 3)

    values = history.series("busy", step_s=1, num_points=100, now_s=4.9).values

    assert values == (0, 1, 2, None, None, None)


@pytest.mark.parametrize(("age_s", "newest"), [(1.7, 5), (1.8, None)])
def test_a_tick_that_still_waits_for_the_driver_is_not_late(monkeypatch, age_s, newest):
    sampler = sampling.Sampler()
    sampler._history.add(0, {"busy": 5})
    sampler._frame = SimpleNamespace(now_s=0)
    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=lambda: age_s))

    assert sampler.series("busy", 9).values[-1] == newest


def test_what_was_not_read_is_a_gap_and_never_zero():
    history = History()
    for tick in range(6):
        history.add(tick, {"host": 1.0} if tick == 3 else {"host": 1.0, "gpu": 0.0})

    assert history.series("gpu", step_s=1, num_points=9).values == (0, 0, 0, None, 0, 0)


def test_a_number_that_comes_later_has_no_values_before():
    history = filled(1, 10)
    history.add(10, {"busy": 10, "new": 5})

    assert history.series("new", step_s=1, num_points=9).values == (5,)
    assert history.series("busy", step_s=1, num_points=2).values == (9, 10)


def test_another_interval_changes_only_the_steps():
    history = History()
    for now_s in (0, 0.5, 1, 1.5, 2, 4, 6):
        history.add(now_s, {"busy": now_s})

    assert history.series("busy", step_s=2, num_points=9).values == (0.5, 2, 4, 6)
    assert history.series("busy", step_s=1, num_points=9).values[-5:] == (2, None, 4, None, 6)


def test_an_unknown_number_has_no_values():
    assert filled(1, 3).series("nothing", step_s=1, num_points=5) == Series(1)
    assert filled(1, 3).series("power", step_s=1, num_points=5) == Series(1)


def test_columns_of_what_has_ended_are_forgotten():
    history = History()
    for tick in range(3000):
        history.add(tick, {"host": 1, ("engine", tick // 10): 1})

    assert history.num_columns < 80


def test_the_number_of_columns_is_bounded_even_if_each_tick_brings_a_new_one():
    history = History()
    for tick in range(MOST_COLUMNS + 200):
        history.add(tick / 10, {"host": 1, ("engine", tick): 1})

    assert history.num_columns == MOST_COLUMNS
    assert history.series("host", step_s=0.1, num_points=3).values == (1, 1, 1)
