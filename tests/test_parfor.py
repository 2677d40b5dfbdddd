"""Loops over the engines: order, sizes, laziness, errors, deaths, seeds, futures."""

import gc
import itertools
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jupyter_mgpu.errors import EngineDiedError, PackingError, PoolClosedError
from jupyter_mgpu.futures import CancelledError
from jupyter_mgpu.loops import parfor, run_loop
from jupyter_mgpu.loops.chunk_sizes import CHUNK_S, ChunkSizes
from jupyter_mgpu.loops.options import LoopOptions
from jupyter_mgpu.on_engine.context import stop_requested
from jupyter_mgpu.pool import Pool
from notebooks import wait_for_file, wait_until


def square(value):
    return value * value


# --- results -----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 1, 7, 5000])
def test_results_stand_in_loop_order(pool: Pool, chunk) -> None:
    assert parfor(square, range(1000), pool=pool, chunk=chunk) == [i * i for i in range(1000)]


def test_several_iterables_are_read_as_zip_reads_them(pool: Pool) -> None:
    assert parfor(pow, [2, 3, 4], itertools.count(1), pool=pool) == [2, 9, 64]
    assert parfor(square, [], pool=pool) == []


def test_large_and_odd_results_and_items_come_through(pool: Pool) -> None:
    items = [np.arange(500_000), "text", None, (1, [2]), b"bytes", np.float32(2)]

    results = parfor(lambda item: (item, "seen"), items, pool=pool, chunk=3)

    assert [seen for _, seen in results] == ["seen"] * 6
    assert np.array_equal(results[0][0], items[0])
    assert [item for item, _ in results][1:] == items[1:]


def test_items_share_nothing_whatever_chunk_they_are_in(pool: Pool) -> None:
    def grow(values: list[int]) -> list[int]:
        values.append(1)
        return values

    shared: list[int] = []
    results = parfor(grow, itertools.repeat(shared, 6), pool=pool, chunk=3)

    assert results == [[1]] * 6
    assert len({id(result) for result in results}) == 6
    assert shared == []


def test_a_result_is_taken_as_it_was_when_the_item_returned(pool: Pool) -> None:
    buffer = []

    def fill(value: int) -> list[int]:
        buffer[:] = [value]
        return buffer

    assert parfor(fill, range(6), pool=pool, chunk=6) == [[value] for value in range(6)]


def test_results_are_handed_over_in_loop_order_as_they_come(pool: Pool) -> None:
    handed = []

    results = run_loop(
        square,
        [range(50)],
        LoopOptions(chunk=3),
        pool=pool,
        on_result=lambda *pair: handed.append(pair),
    )

    assert handed == [(i, i * i) for i in range(50)]
    assert results == []


def test_without_a_pool_a_loop_in_the_kernel_runs_here() -> None:
    where = parfor(lambda _: (os.getpid(), threading.current_thread()), range(3), workers=0)

    assert where == [(os.getpid(), threading.main_thread())] * 3


def test_results_live_no_longer_than_their_list(pool: Pool) -> None:
    results = parfor(np.zeros, [10, 1_000_000, 10], pool=pool)
    references = [weakref.ref(result) for result in results]

    del results

    def are_gone() -> bool:
        gc.collect()
        return all(reference() is None for reference in references)

    wait_until(are_gone, what="the end of the results")


# --- who runs what -----------------------------------------------------------------------


class Costly:
    """A function that tells each time it is packed and rebuilt."""

    num_packed = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, _):
        return os.getpid()

    def __reduce__(self):
        Costly.num_packed += 1
        return rebuild_costly, (self.folder,)


def rebuild_costly(folder: Path):
    (folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()
    return Costly(folder)


def test_the_function_is_packed_once_and_sent_once_to_each_engine(pool: Pool, tmp_path) -> None:
    Costly.num_packed = 0

    used = set(parfor(Costly(tmp_path), range(40), pool=pool, chunk=1))

    rebuilt = [int(path.name.partition("-")[0]) for path in tmp_path.iterdir()]
    assert Costly.num_packed == 1
    assert sorted(rebuilt) == sorted(used)


def test_an_engine_forgets_the_function_when_the_loop_has_ended(pool: Pool) -> None:
    parfor(square, range(10), pool=pool)

    def kept():
        from jupyter_mgpu.on_engine import context

        return [name for name in context.require().kept if name.startswith("function")]

    wait_until(lambda: pool.submit(kept).result(10) == [], what="engines that forgot it")


def test_no_more_engines_are_used_than_were_asked_for(pool: Pool) -> None:
    pids = parfor(lambda _: os.getpid(), range(40), pool=pool, workers=1, chunk=1)

    assert len(set(pids)) == 1


def test_work_goes_to_who_is_free(pool: Pool, tmp_path) -> None:
    go_on = tmp_path / "go on"
    future = parfor(
        lambda i: wait_for_file(go_on) if i == 0 else i, range(200), pool=pool, wait=False
    )

    wait_until(lambda: len(future.results) == 199, 30, "all other results")
    go_on.touch()
    assert future.result(30)[1:] == list(range(1, 200))


def test_a_chunk_that_takes_too_long_gives_back_what_it_has_not_begun(pool: Pool, tmp_path) -> None:
    def uneven(index: int) -> int:
        if index >= 64:
            # Neither engine begins a third one, however slow the other is, before that has two.
            own = len(list(tmp_path.glob(f"{os.getpid()} *")))
            (tmp_path / f"{os.getpid()} {index}").touch()
            wait_until(lambda: len(list(tmp_path.iterdir())) > 2 * min(own, 2))
            time.sleep(0.3)
        return os.getpid()

    pids = parfor(uneven, range(72), pool=pool)

    slow = pids[64:]
    assert min(slow.count(pid) for pid in set(pids)) >= 2
    assert len(set(slow)) == 2


def test_slow_items_are_seen_before_their_chunk_ends(pool: Pool, tmp_path) -> None:
    go_on = tmp_path / "go on"

    def slow(index: int) -> int:
        wait_for_file(go_on) if index == 3 else time.sleep(0.15)
        return index

    future = parfor(slow, range(4), pool=pool, chunk=4, wait=False)

    wait_until(lambda: len(future.results) == 3, 30, "three results")
    assert future.progress == 0.75
    go_on.touch()
    assert future.result(30) == [0, 1, 2, 3]


def test_a_loop_within_a_loop_runs_in_its_engine(pool: Pool) -> None:
    def outer(index: int):
        return os.getpid(), parfor(lambda _: os.getpid(), range(3), seed=index)

    for pid, inner in parfor(outer, range(4), pool=pool):
        assert inner == [pid] * 3


# --- chunk sizes -------------------------------------------------------------------------


def test_the_first_chunks_are_single_items() -> None:
    sizes = ChunkSizes()

    assert sizes.next(100_000, 2) == 1
    assert sizes.next(None, 2) == 1


def test_chunks_grow_to_the_time_that_they_are_to_take() -> None:
    sizes = ChunkSizes()
    chosen = []
    for _ in range(8):
        chosen.append(sizes.next(None, 2))
        sizes.ran(chosen[-1], chosen[-1] * 0.001)

    assert chosen[0] == 1
    assert chosen[1] < chosen[2]
    assert chosen[-1] == pytest.approx(CHUNK_S / 0.001, abs=1)


def test_slow_items_travel_alone() -> None:
    sizes = ChunkSizes()
    sizes.ran(100, 0.01)
    for _ in range(3):
        sizes.ran(1, 10)

    assert sizes.next(1000, 2) == 1


def test_the_end_of_a_loop_is_divided_finely() -> None:
    sizes = ChunkSizes()
    sizes.ran(1000, 0.001)

    assert sizes.next(800, 4) == 100
    assert sizes.next(8, 4) == 1
    assert sizes.next(1, 4) == 1


def test_a_size_that_was_asked_for_is_kept() -> None:
    sizes = ChunkSizes(fixed=7)
    sizes.ran(7, 100)

    assert sizes.next(3, 2) == 7
    assert sizes.budget_s is None


# --- reading -----------------------------------------------------------------------------


def test_an_iterable_is_read_only_as_far_as_needed(pool: Pool, tmp_path) -> None:
    go_on = tmp_path / "go on"
    read = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    future = parfor(lambda i: wait_for_file(go_on) or i, numbers(), pool=pool, wait=False)

    wait_until(lambda: len(read) >= 4, what="a chunk that runs and one that waits per engine")
    wait_until(lambda: future.running(), what="the loop")
    assert len(read) == 4
    go_on.touch()
    assert future.result(30) == list(range(100))


def test_an_endless_loop_runs_until_it_is_cancelled(pool: Pool) -> None:
    future = parfor(square, itertools.count(), pool=pool, wait=False)

    wait_until(lambda: len(future.results) > 1000, 30, "results")
    assert future.progress is None
    assert future.cancel()
    results = future.results
    assert all(value == index * index for index, value in results.items())
    with pytest.raises(CancelledError):
        future.result(60)


def test_an_iterable_that_raises_ends_the_loop_with_its_own_error(pool: Pool) -> None:
    seen: dict[int, int] = {}
    is_begun = threading.Event()

    def numbers() -> Iterator[int]:
        yield from range(5)
        is_begun.wait(10)
        wait_until(lambda: len(future.results) >= 2, what="results")
        seen.update(future.results)
        raise OSError("the file ended")

    future = parfor(square, numbers(), pool=pool, wait=False, chunk=1)
    is_begun.set()

    with pytest.raises(OSError, match="the file ended") as caught:
        future.result(30)
    assert seen.items() <= caught.value.results.items()


# --- bad input ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"chunk": -1}, ValueError, "chunk=-1 was given; it must be 1 or more"),
        ({"chunk": 0}, ValueError, "chunk=0"),
        ({"chunk": 2.5}, TypeError, "chunk=2.5 was given; it must be a whole number"),
        ({"workers": -2}, ValueError, "workers=-2"),
        ({"workers": True}, TypeError, "workers=True"),
        ({"seed": "zero"}, TypeError, "seed='zero'"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"on_error": "ignore"}, ValueError, "on_error='ignore'"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(tmp_path, options, kind, message) -> None:
    touched = tmp_path / "touched"

    with pytest.raises(kind, match=message):
        parfor(lambda _: touched.touch(), range(3), **{"workers": 0, **options})
    assert not touched.exists()


def test_what_cannot_be_looped_over_or_called_is_named() -> None:
    with pytest.raises(TypeError, match=r"No iterable was given.*parfor\(fn, range\(10\)\)"):
        parfor(square)
    with pytest.raises(TypeError, match=r"10 was given.*Did you mean range\(10\)"):
        parfor(square, 10)
    with pytest.raises(TypeError, match="3 was given as the loop's function"):
        parfor(3, range(3))


def test_a_function_that_cannot_be_pickled_is_refused_with_the_path(pool: Pool) -> None:
    lock = threading.Lock()

    with pytest.raises(PackingError, match="closure variable lock"):
        parfor(lambda _: lock.locked(), range(3), pool=pool)
    assert pool.tasks() == []


def test_an_item_that_cannot_be_pickled_is_named_by_index_and_path(pool: Pool) -> None:
    is_begun = threading.Event()

    def items() -> Iterator[object]:
        yield from range(3)
        is_begun.wait(10)
        wait_until(lambda: len(future.results) == 3, what="the results before it")
        yield {"lock": threading.Lock()}
        yield 4

    future = parfor(lambda item: item, items(), pool=pool, wait=False)
    is_begun.set()

    with pytest.raises(
        PackingError, match=r"Item 3 of the loop cannot be sent: item\['lock'\]"
    ) as caught:
        future.result(30)
    assert caught.value.results == {0: 0, 1: 1, 2: 2}


def test_items_and_results_that_cannot_be_pickled_are_collected(pool: Pool) -> None:
    items = [0, threading.Lock(), 2, threading.Lock(), 4]

    results = parfor(
        lambda item: threading.Lock() if item == 2 else item, items, pool=pool, on_error="collect"
    )

    assert [results[0], results[4]] == [0, 4]
    for index, what in ((1, "Item 1"), (2, "The result of item 2"), (3, "Item 3")):
        assert isinstance(results[index], PackingError)
        assert what in str(results[index])


# --- errors ------------------------------------------------------------------------------


class OddError(Exception):
    pass


def fail_at_seven(index: int) -> int:
    if index == 7:
        raise OddError("seven is odd")
    return index


def test_a_failing_item_ends_the_loop_with_its_own_exception(pool: Pool) -> None:
    with pytest.raises(OddError, match="seven is odd") as caught:
        parfor(fail_at_seven, range(10_000), pool=pool)

    notes = "\n".join(caught.value.__notes__)
    assert "in item 7 of the loop: 7" in notes
    assert "on rank" in notes
    assert "in fail_at_seven" in notes
    assert 7 not in caught.value.results
    assert all(index == value for index, value in caught.value.results.items())
    assert parfor(square, range(3), pool=pool) == [0, 1, 4]


@pytest.mark.parametrize("workers", [None, 0])
def test_errors_stand_among_the_results_if_they_are_collected(pool: Pool, workers) -> None:
    results = parfor(fail_at_seven, range(20), pool=pool, on_error="collect", workers=workers)

    assert isinstance(results.pop(7), OddError)
    assert results == [index for index in range(20) if index != 7]


def test_an_error_in_the_kernel_keeps_results_and_names_the_item() -> None:
    with pytest.raises(OddError) as caught:
        parfor(fail_at_seven, range(20), workers=0)

    assert caught.value.results == {index: index for index in range(7)}
    assert "in item 7 of the loop: 7" in caught.value.__notes__


def test_what_runs_elsewhere_is_interrupted_when_an_item_fails(pool: Pool, tmp_path) -> None:
    begun = tmp_path / "begun"

    def work(index: int) -> None:
        if index == 0:
            begun.touch()
            while True:
                time.sleep(0.01)
        wait_for_file(begun)
        raise OddError

    pids = {engine.pid for engine in pool.engines}
    with pytest.raises(OddError):
        parfor(work, range(2), pool=pool)
    wait_until(lambda: all(e.state == "idle" for e in pool.engines), what="idle engines")
    assert {engine.pid for engine in pool.engines} == pids


def test_an_interrupt_that_an_item_raises_itself_is_an_error_of_that_item(pool: Pool) -> None:
    def stop(index: int) -> int:
        if index == 2:
            raise KeyboardInterrupt("from within")
        return index

    results = parfor(stop, range(5), pool=pool, on_error="collect", chunk=5)

    assert isinstance(results[2], KeyboardInterrupt)
    assert [results[i] for i in (0, 1, 3, 4)] == [0, 1, 3, 4]


def test_only_the_item_that_ran_fails_when_an_engine_dies(pool: Pool) -> None:
    def die_at_13(index: int) -> int:
        if index == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    results = parfor(die_at_13, range(40), pool=pool, on_error="collect", chunk=10)

    died = results.pop(13)
    assert isinstance(died, EngineDiedError)
    assert died.rank in (0, 1)
    assert died.__notes__ == ["in item 13 of the loop: 13"]
    assert results == [index for index in range(40) if index != 13]


def test_a_death_ends_a_loop_that_does_not_collect_errors(pool: Pool) -> None:
    def die(index: int) -> int:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    with pytest.raises(EngineDiedError, match="SIGKILL") as caught:
        parfor(die, range(10), pool=pool, chunk=5)

    assert "in item 3 of the loop: 3" in caught.value.__notes__
    wait_until(lambda: all(e.state == "idle" for e in pool.engines), 30, "a new engine")


def test_a_loop_goes_on_while_every_engine_is_replaced(pool: Pool) -> None:
    def die(index: int) -> int:
        if index in (2, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    results = parfor(die, range(30), pool=pool, on_error="collect", chunk=1)

    assert [type(results[index]) for index in (2, 3)] == [EngineDiedError] * 2
    assert results[4:] == list(range(4, 30))


def test_items_beside_those_that_kill_engine_after_engine_still_come_through(pool: Pool) -> None:
    deadly = (3, 5, 7)

    def die(index: int) -> int:
        if index in deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    results = parfor(die, range(10), pool=pool, on_error="collect", chunk=10, workers=1)

    assert [i for i in range(10) if isinstance(results[i], EngineDiedError)] == list(deadly)
    assert [results[i] for i in range(10) if i not in deadly] == [0, 1, 2, 4, 6, 8, 9]


class Deadly:
    """A function that kills the engine before any item runs."""

    def __call__(self, _):
        return None

    def __reduce__(self):
        return kill_engine, ()


def kill_engine() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_function_that_kills_every_engine_ends_the_loop(pool: Pool) -> None:
    with pytest.raises(EngineDiedError, match="SIGKILL") as caught:
        parfor(Deadly(), range(1), pool=pool)

    assert caught.value.__notes__ == ["in item 0 of the loop: 0"]
    wait_until(lambda: all(e.state == "idle" for e in pool.engines), 30, "a new engine")


# --- random numbers ----------------------------------------------------------------------


def draw(_: int) -> tuple[float, float, float]:
    import torch

    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_random_numbers_depend_on_seed_and_item_only(pool: Pool) -> None:
    first = parfor(draw, range(12), pool=pool, seed=0)

    assert parfor(draw, range(12), pool=pool, seed=0, chunk=5) == first
    assert parfor(draw, range(12), pool=pool, seed=0, workers=1) == first
    assert parfor(draw, range(12), seed=0, workers=0) == first
    assert parfor(draw, range(12), pool=pool, seed=1) != first
    assert len(set(itertools.chain.from_iterable(first))) == 36


def test_the_generators_of_kernel_and_engines_go_on_as_if_no_loop_had_been(pool: Pool) -> None:
    import torch

    def reset() -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    reset()
    expected = draw(0)
    reset()
    parfor(draw, range(3), seed=0, workers=0)
    assert draw(0) == expected

    pool.submit(reset).result(60)
    for rank in pool.ranks:
        pool.submit_task(reset, rank=rank).result(60)
    parfor(draw, range(8), pool=pool, seed=0, chunk=1)
    for rank in pool.ranks:
        assert pool.submit_task(draw, (0,), rank=rank).result(60) == expected


# --- futures -----------------------------------------------------------------------------


def test_a_loop_in_the_background_is_one_task(pool: Pool, tmp_path) -> None:
    go_on = tmp_path / "go on"
    future = parfor(
        lambda i: wait_for_file(go_on) or i, range(50), pool=pool, wait=False, name="many"
    )

    wait_until(lambda: future.running(), what="the loop")
    assert [task.name for task in pool.tasks()] == ["many"]
    assert [row["name"] for row in pool.task_rows()].count("many") == 1
    go_on.touch()
    assert future.result(30) == list(range(50))
    assert future.state == "finished"
    assert future.progress == 1
    assert pool.tasks() == []


def test_a_cancelled_loop_keeps_what_was_finished(pool: Pool, tmp_path) -> None:
    never = tmp_path / "never"
    future = parfor(
        lambda i: wait_for_file(never) if i >= 3 else i, range(50), pool=pool, wait=False, chunk=1
    )

    wait_until(lambda: len(future.results) == 3, what="results")
    assert future.cancel()
    assert future.state == "cancelled"
    wait_until(lambda: all(e.state == "idle" for e in pool.engines), what="idle engines")
    assert future.results == {0: 0, 1: 1, 2: 2}
    wait_until(lambda: pool.tasks() == [], what="an empty list of tasks")


def test_a_cancel_reaches_what_runs_while_the_iterable_waits_for_its_next_item(
    pool: Pool, tmp_path
) -> None:
    never = tmp_path / "never"
    go_on = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        go_on.wait(60)

    future = parfor(lambda _: wait_for_file(never), items(), pool=pool, wait=False)
    wait_until(lambda: future.running(), what="the loop")

    future.cancel()

    wait_until(lambda: all(e.state == "idle" for e in pool.engines), what="idle engines")
    assert pool.tasks() == []
    go_on.set()


def test_a_loop_that_is_asked_to_stop_lets_its_items_end_by_themselves(pool: Pool) -> None:
    def until_asked(index: int) -> str:
        if index == 0:
            return "quick"
        while not stop_requested():
            time.sleep(0.005)
        return "asked"

    future = parfor(until_asked, range(50), pool=pool, wait=False, chunk=1)
    wait_until(lambda: len(future.results) == 1 and future.running(), what="the first result")

    future.request_stop()

    wait_until(lambda: future.done(), what="the end")
    assert future.state == "cancelled"
    assert set(future.results.values()) <= {"quick", "asked"}
    assert 2 <= len(future.results) <= 4


def test_a_stop_that_is_asked_for_while_an_item_is_read_reaches_that_item(pool: Pool) -> None:
    is_here = threading.Event()

    def items() -> Iterator[int]:
        is_here.wait(10)
        future.request_stop()
        yield 0

    def until_asked(_: int) -> None:
        while not stop_requested():
            time.sleep(0.005)

    future = parfor(until_asked, items(), pool=pool, wait=False)
    is_here.set()

    wait_until(lambda: future.done(), what="the end")


def test_a_failed_loop_in_the_background_keeps_its_error(pool: Pool) -> None:
    future = parfor(fail_at_seven, range(20), pool=pool, wait=False)

    with pytest.raises(OddError):
        future.result(30)
    assert future.state == "failed"
    assert future.results == future.exception().results


def test_what_items_print_stands_in_the_diary(pool: Pool) -> None:
    future = parfor(lambda i: print(f"item {i}"), range(5), pool=pool, wait=False)

    future.result(30)
    assert sorted(future.diary.split("\n")[:5]) == [f"item {i}" for i in range(5)]


def test_a_pool_that_ends_ends_its_loops(tmp_path) -> None:
    from jupyter_mgpu.start import parpool

    with parpool(1, name="short") as short:
        never = tmp_path / "never"
        future = parfor(lambda _: wait_for_file(never), range(5), pool=short, wait=False)
        wait_until(lambda: future.running(), what="the loop")
        short.shutdown(wait_for_tasks=False)

        with pytest.raises(PoolClosedError):
            future.result(30)
        with pytest.raises(PoolClosedError):
            parfor(square, range(3), pool=short)
