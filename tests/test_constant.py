"""`Constant`: once per engine, made lazily, freed with its cleanup; wherever code runs."""

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jupyter_mgpu import Constant, count_bytes, parfor, parpool, spmd
from jupyter_mgpu.errors import MgpuError, PackingError
from jupyter_mgpu.exchange import published
from jupyter_mgpu.pool import Pool
from notebooks import Notebook, wait_until


@pytest.fixture
def duo():
    """A pool of its own."""
    opened = parpool(2, name="duo")
    yield opened
    opened.shutdown(wait_for_tasks=False)


def read(constant: Constant) -> Any:
    return constant.value


def writer(path: Path) -> Callable[[Any], None]:
    """Make a function that adds a line to a file."""

    def write(value: Any) -> None:
        with path.open("a") as file:
            file.write(f"{value}\n")

    return write


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def on_each(pool: Pool, function: Callable[..., Any], *args: Any) -> list[Any]:
    calls = [pool.submit_task(function, args, rank=rank) for rank in pool.ranks]
    return [call.result(60) for call in calls]


def test_a_value_is_the_same_in_tasks_loops_cells_and_the_kernel(pool: Pool) -> None:
    constant = Constant({"rate": 0.5})

    assert constant.value == {"rate": 0.5}
    assert pool.submit(read, constant).result(60) == {"rate": 0.5}
    assert parfor(lambda i: constant.value["rate"] * i, range(3), pool=pool) == [0, 0.5, 1]
    assert list(spmd(lambda: constant.value["rate"], pool=pool)) == [0.5, 0.5]


def test_a_value_goes_to_each_engine_once_and_is_one_object_there(pool: Pool) -> None:
    constant = Constant(np.arange(2**20))

    with count_bytes(pool) as moved:
        first = on_each(pool, lambda c: (id(c.value), int(c.value[-1])), constant)
        again = on_each(pool, lambda c: (id(c.value), int(c.value[-1])), constant)

    assert first == again
    assert first[0][1] == 2**20 - 1
    for rank in pool.ranks:
        assert 2**23 < moved[rank].sent < 2**23 + 2**17
        assert moved[rank].shared == 2**23


def test_later_changes_of_the_value_are_not_seen(pool: Pool) -> None:
    numbers = [1]
    constant = Constant(numbers)
    numbers.append(2)

    assert pool.submit(read, constant).result(60) == [1]


def test_a_constant_may_be_made_before_its_pool_and_serve_several(pool: Pool, duo: Pool) -> None:
    constant = Constant("shared")

    assert pool.submit(read, constant).result(60) == "shared"
    assert duo.submit(read, constant).result(60) == "shared"
    duo.shutdown()
    assert pool.submit(read, constant).result(60) == "shared"


def test_a_factory_is_called_once_per_engine_at_the_first_use(pool: Pool, tmp_path) -> None:
    log = writer(tmp_path / "made")

    def make() -> int:
        log(os.getpid())
        return os.getpid()

    constant = Constant(make)

    assert on_each(pool, repr, constant) == ["<Constant>", "<Constant>"]
    assert lines_of(tmp_path / "made") == []
    pids = on_each(pool, read, constant)
    assert on_each(pool, read, constant) == pids
    assert constant.value == os.getpid()
    assert sorted(lines_of(tmp_path / "made")) == sorted(map(str, [*pids, os.getpid()]))


def test_threads_of_a_task_share_one_call_of_the_factory(pool: Pool) -> None:
    constant = Constant(factory=object)

    def read_in_threads(constant: Constant) -> int:
        seen: list[Any] = []
        threads = [threading.Thread(target=lambda: seen.append(constant.value)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        return len(seen) * 10 + len(set(map(id, seen)))

    assert pool.submit(read_in_threads, constant).result(60) == 81


def test_what_a_factory_raises_is_raised_in_the_task_and_it_is_tried_again(
    pool: Pool, tmp_path
) -> None:
    ready = tmp_path / "ready"

    def make() -> str:
        if not ready.exists():
            raise ValueError("not yet")
        return "made"

    constant = Constant(make)

    with pytest.raises(ValueError, match="not yet"):
        pool.submit_task(read, (constant,), rank=0).result(60)
    ready.touch()
    assert pool.submit_task(read, (constant,), rank=0).result(60) == "made"


def test_functions_are_factories_and_other_callables_are_values(pool: Pool) -> None:
    class Scale:
        def __call__(self) -> str:
            return "called"

    assert type(pool.submit(read, Constant(Scale())).result(60)).__name__ == "Scale"
    assert pool.submit(lambda c: c.value.__name__, Constant(Scale)).result(60) == "Scale"
    assert pool.submit(read, Constant(factory=Scale())).result(60) == "called"


def test_a_replaced_engine_makes_it_again(duo: Pool) -> None:
    constant = Constant(os.getpid)
    (before, other) = on_each(duo, read, constant)
    starts = duo.engines[0].starts

    os.kill(before, signal.SIGKILL)
    wait_until(lambda: duo.engines[0].starts > starts, 60, "a new engine")

    after = on_each(duo, read, constant)
    assert after[0] == duo.engines[0].pid != before
    assert after[1] == other


def test_an_added_engine_makes_it_as_well(duo: Pool) -> None:
    constant = Constant([3])
    on_each(duo, read, constant)

    parpool(3, name="duo")

    assert on_each(duo, read, constant) == [[3], [3], [3]]


def test_it_is_freed_with_one_cleanup_per_engine_when_the_notebook_lets_go(
    pool: Pool, tmp_path
) -> None:
    cleaned = tmp_path / "cleaned"
    constant = Constant(os.getpid, cleanup=writer(cleaned))
    pids = on_each(pool, read, constant)

    del constant
    gc.collect()

    wait_until(lambda: len(lines_of(cleaned)) == 2, what="clean-ups")
    assert sorted(lines_of(cleaned)) == sorted(map(str, pids))


def test_nothing_of_it_stays_in_memory(pool: Pool) -> None:
    class Thing:
        pass

    def make() -> Any:
        import builtins
        import weakref

        thing = Thing()
        builtins.thing = weakref.ref(thing)
        return thing

    def has_thing() -> bool:
        import builtins

        return builtins.thing() is not None

    thing = Thing()
    here = weakref.ref(thing)
    value, made = Constant(thing), Constant(make)
    on_each(pool, read, made)
    assert on_each(pool, has_thing) == [True, True]

    del thing
    value.close()
    made.close()

    assert here() is None
    assert on_each(pool, has_thing) == [False, False]
    assert published._publications.keys().isdisjoint({value._key, made._key})


def test_engines_that_did_not_use_it_clean_nothing_up(pool: Pool, tmp_path) -> None:
    cleaned = tmp_path / "cleaned"
    constant = Constant("x", cleanup=writer(cleaned))
    pool.submit_task(read, (constant,), rank=1).result(60)

    constant.close()
    constant.close()
    on_each(pool, abs, 1)  # what came before has happened

    assert lines_of(cleaned) == ["x"]


def test_tasks_that_wait_or_run_keep_a_constant_that_the_notebook_forgot(
    pool: Pool, tmp_path
) -> None:
    go_on, cleaned = tmp_path / "go on", tmp_path / "cleaned"

    def read_late(constant: Constant) -> str:
        while not go_on.exists():
            time.sleep(0.005)
        return constant.value

    def submit() -> list[Any]:
        constant = Constant("kept", cleanup=writer(cleaned))
        return [pool.submit_task(read_late, (constant,), rank=0) for _ in range(3)]

    calls = submit()
    gc.collect()
    go_on.touch()

    assert [call.result(60) for call in calls] == ["kept"] * 3
    wait_until(lambda: lines_of(cleaned) == ["kept"], what="the clean-up")


def test_a_running_task_keeps_what_is_closed_meanwhile(pool: Pool, tmp_path) -> None:
    begun, go_on, cleaned = tmp_path / "begun", tmp_path / "go on", tmp_path / "cleaned"

    def read_twice(constant: Constant) -> tuple[str, bool, str]:
        first = constant.value
        begun.touch()
        while not go_on.exists():
            time.sleep(0.005)
        return first, cleaned.exists(), constant.value

    constant = Constant("open", cleanup=writer(cleaned))
    running = pool.submit_task(read_twice, (constant,), rank=0)
    waiting = pool.submit_task(read, (constant,), rank=0)
    wait_until(begun.exists, 60, "the task")

    constant.close()
    go_on.touch()

    assert running.result(60) == ("open", False, "open")
    with pytest.raises(MgpuError, match="was freed"):
        waiting.result(60)
    with pytest.raises(MgpuError, match="was freed"):
        _ = constant.value
    assert lines_of(cleaned) == ["open"]


def test_the_end_of_a_pool_cleans_up(duo: Pool, tmp_path) -> None:
    cleaned = tmp_path / "cleaned"
    constant = Constant("resource", cleanup=writer(cleaned))
    on_each(duo, read, constant)

    duo.shutdown()

    assert lines_of(cleaned) == ["resource"] * 2
    assert constant.value == "resource"


def test_a_failing_cleanup_harms_nothing_and_is_told(nb: Notebook, tmp_path: Path) -> None:
    told = tmp_path / "told"
    nb.check("""
def fail(value):
    raise OSError(f"cannot close {value}")
constant = mgpu.Constant("door", cleanup=fail)
mgpu.parfeval(lambda: constant.value).result()
""")

    cell = nb.submit(f"""
constant.close()
import pathlib, time
while not pathlib.Path({str(told)!r}).exists():
    time.sleep(0.01)
""")
    nb.wait_for_output(cell, "OSError: cannot close door")
    told.touch()
    assert nb.wait(cell).ok


def test_each_rank_has_its_own_value_of_a_composite(pool: Pool) -> None:
    pool.scatter("part", ["left", "right"])
    constant = Constant(pool["part"])

    assert on_each(pool, read, constant) == ["left", "right"]
    with pytest.raises(MgpuError, match="one value per rank"):
        _ = constant.value


def test_the_composite_of_a_call_lives_as_long_as_its_constant(pool: Pool) -> None:
    constant = Constant(spmd(os.getpid, pool=pool))
    gc.collect()

    assert on_each(pool, read, constant) == [engine.pid for engine in pool.engines]


def test_a_composite_of_another_pool_is_refused(pool: Pool, duo: Pool) -> None:
    pool["x"] = 1
    duo["x"] = 2
    constant = Constant(pool["x"])

    with pytest.raises(MgpuError, match="another pool"):
        duo.submit(read, constant).result(60)
    with pytest.raises(TypeError, match="cleanup"):
        Constant(pool["x"], cleanup=print)


def test_bad_values_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(PackingError, match=r"value\['lock'\].*lock"):
        Constant({"lock": threading.Lock()})
    with pytest.raises(TypeError, match="either a value or a factory"):
        Constant()
    with pytest.raises(TypeError, match="either a value or a factory"):
        Constant(1, factory=dict)
    with pytest.raises(TypeError, match="cleanup is a str"):
        Constant(1, cleanup="close")  # type: ignore[arg-type]


def test_a_constant_comes_back_as_itself(pool: Pool) -> None:
    constant = Constant([1, 2])

    assert pool.submit(lambda c: c, constant).result(60) is constant


def test_a_constant_of_an_engine_goes_as_its_value(pool: Pool) -> None:
    def make() -> Constant:
        from jupyter_mgpu import Constant

        return Constant([4, 5])

    assert pool.submit(make).result(60).value == [4, 5]


def test_a_stop_reaches_a_factory(pool: Pool, tmp_path) -> None:
    begun = tmp_path / "begun"

    def make() -> None:
        begun.touch()
        time.sleep(60)

    constant = Constant(make)
    call = pool.submit(read, constant)
    wait_until(begun.exists, 60, "the factory")

    call.cancel()

    with pytest.raises(CancelledError):
        call.result()
    assert on_each(pool, abs, -1) == [1, 1]


def test_a_cell_uses_and_a_notebook_frees_it(nb: Notebook, tmp_path) -> None:
    cleaned = tmp_path / "cleaned"
    nb.check(f"""
import os, pathlib
def note(value):
    with pathlib.Path({str(cleaned)!r}).open("a") as file:
        file.write(f"{{value}}\\n")
table = mgpu.Constant(os.getpid, cleanup=note)
""")
    nb.check("%%spmd\npid = table.value\nassert pid == os.getpid()")
    nb.check("%%parfor i in range(4)\nassert table.value == os.getpid()")
    pids = nb.value("list(mgpu.current_pool()['pid'])")

    nb.check("del table")

    wait_until(lambda: sorted(lines_of(cleaned)) == sorted(map(str, pids)), what="clean-ups")
    cell = nb.run("%%spmd\ntable.value")
    assert "was freed" in cell.evalue
