"""Other ways to train in a pool, each in `%%spmd` cells: an own loop, and other projects' loops."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import library_loops
import pytest
from library_loops import NUM_EPOCHS, NUM_ROWS

import jupyter_mgpu as mgpu
from jupyter_mgpu.pool import Pool
from notebooks import Notebook, notebook, wait_until


def needs(name: str) -> Any:
    is_missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(is_missing, reason=f"{name} is not installed")


LIGHTNING = pytest.param("by_lightning()", marks=needs("lightning"), id="Lightning")
TRANSFORMERS = pytest.param(
    "by_transformers({folder!r})", marks=needs("transformers"), id="transformers"
)
WAYS = [
    pytest.param("by_hand()", id="by hand"),
    pytest.param("by_fabric()", marks=needs("lightning"), id="Fabric"),
    LIGHTNING,
    pytest.param("by_accelerate()", marks=needs("accelerate"), id="Accelerate"),
    TRANSFORMERS,
]


@pytest.fixture(scope="module")
def loops() -> Iterator[Notebook]:
    """A notebook beside the loops, with a pool of two."""
    with notebook(cwd=str(Path(__file__).parent)) as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 2")
        yield opened


def check_found(found: Any, world_size: int) -> None:
    """Demand one group of all ranks, equal weights, and each sample once per epoch."""
    assert [size for size, _, _ in found] == [world_size] * world_size
    assert all(weights == found[0][2] for _, _, weights in found)
    per_epoch = NUM_ROWS // world_size
    for epoch in range(NUM_EPOCHS):
        part = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        assert sorted(row for _, rows, _ in found for row in rows[part]) == [*range(NUM_ROWS)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", WAYS)
def test_a_loop_that_is_not_ours_runs_twice_in_a_pool(
    loops: Notebook, tmp_path: Path, way: str
) -> None:
    call = way.format(folder=str(tmp_path))
    for _ in range(2):
        loops.check(f"%%spmd\nimport library_loops\nfound = library_loops.{call}", timeout=200)

        check_found(loops.value("list(mgpu.current_pool()['found'])"), 2)


@pytest.fixture(scope="module")
def solo() -> Iterator[Pool]:
    """One engine."""
    pool = mgpu.parpool(1, name="solo")
    yield pool
    pool.shutdown(wait_for_tasks=False)


@pytest.mark.timeout(240)  # the engine imports the library first
@pytest.mark.parametrize("after", ["step", "epoch"])
@pytest.mark.parametrize("way", [LIGHTNING, TRANSFORMERS])
def test_callbacks_report_and_end_a_trainer_when_asked_to(
    solo: Pool, tmp_path: Path, way: str, after: Any
) -> None:
    name, _, arguments = way.partition("(")
    folder = [str(tmp_path)] if "folder" in arguments else []

    future = mgpu.parfeval(getattr(library_loops, name), *folder, pool=solo)
    wait_until(lambda: len(future.metrics) > 3 or future.done(), 150, "reports")
    future.request_stop(after=after)

    world_size, rows, _ = future.result(60)
    assert world_size == 1
    steps = [row["step"] for row in future.metrics if row.get("loss") is not None]
    assert steps == list(range(1, len(steps) + 1))
    assert after == "step" or len(rows) % NUM_ROWS == 0
