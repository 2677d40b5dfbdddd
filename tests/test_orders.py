"""The environments of engines that a launcher starts alike, and which is whose."""

import json
import os

import pytest

from jupyter_mgpu.on_engine import orders

ENGINES = [{"RANK": str(rank), "TOKEN": "secret", "EMPTY": ""} for rank in range(3)]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("RANK", "TOKEN", "EMPTY", "PLACE"):
        monkeypatch.setenv(name, "of this test")
    return monkeypatch


def test_a_single_engine_finds_its_environment_with_empty_values(
    environment: pytest.MonkeyPatch,
) -> None:
    for name, value in orders.fold(ENGINES[1:2]).items():
        environment.setenv(name, value)

    orders.unfold()

    assert (os.environ["RANK"], os.environ["TOKEN"], os.environ["EMPTY"]) == ("1", "secret", "")
    assert orders.VARIABLE not in os.environ


def test_each_of_a_set_finds_its_own_by_the_launchers_number(
    environment: pytest.MonkeyPatch,
) -> None:
    folded = orders.fold(ENGINES, "SLURM_PROCID|OMPI_RANK", {"PLACE": "SLURM_LOCALID"})
    for name, value in {**folded, "SLURM_PROCID": "2", "SLURM_LOCALID": "1"}.items():
        environment.setenv(name, value)

    orders.unfold()

    assert (os.environ["RANK"], os.environ["PLACE"]) == ("2", "1")


def test_what_all_have_in_common_travels_once() -> None:
    folded = orders.fold(ENGINES)[orders.VARIABLE]

    assert folded.count("secret") == 1
    assert json.loads(folded)["each"] == [{"RANK": "0"}, {"RANK": "1"}, {"RANK": "2"}]


def test_without_orders_nothing_changes(environment: pytest.MonkeyPatch) -> None:
    environment.delenv(orders.VARIABLE, raising=False)

    orders.unfold()

    assert os.environ["RANK"] == "of this test"
