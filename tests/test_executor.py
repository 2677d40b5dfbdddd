"""A pool as an Executor of the standard library: its promises and its known hazards."""

import asyncio
import concurrent.futures
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_mgpu.callbacks import after_each
from jupyter_mgpu.calls import cancel_all
from jupyter_mgpu.client import PoolExecutor
from jupyter_mgpu.errors import EngineDiedError, PackingError, PoolClosedError
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.start import parpool
from notebooks import Notebook, wait_until

TIMEOUT_S = 60


@pytest.fixture
def executor(pool: Pool) -> Iterator[PoolExecutor]:
    executor = pool.executor()
    yield executor
    executor.end_all()
    executor.shutdown()


def wait_for(path: Path) -> str:
    """Hold an engine up until a file is there."""
    while not path.exists():
        time.sleep(0.01)
    return path.name


def held(executor: PoolExecutor, gate: Path) -> list[Any]:
    """Keep both engines busy; returns the futures when both calls run."""
    holders = [executor.submit(wait_for, gate) for _ in range(2)]
    wait_until(lambda: all(future.running() for future in holders), TIMEOUT_S)
    return holders


def test_calls_run_on_all_engines_and_their_end_is_not_the_pools(
    pool: Pool, tmp_path: Path
) -> None:
    with pool.executor() as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        assert executor._max_workers == 2
        holders = held(executor, tmp_path / "gate")
        (tmp_path / "gate").touch()
        assert executor.submit(dict, [("a", 1)], fn=2, self=3).result(TIMEOUT_S) == {
            "a": 1,
            "fn": 2,
            "self": 3,
        }
        assert {future.rank for future in holders} == {0, 1}

    for late in (lambda: executor.submit(os.getpid), lambda: executor.map(abs, [1])):
        with pytest.raises(RuntimeError, match="after shutdown"):
            late()
    assert pool.submit(os.getpid).result(TIMEOUT_S)


def test_a_choice_that_does_not_exist_is_refused(pool: Pool) -> None:
    with pytest.raises(TypeError, match=r"max_workers, but it takes: name, priority, timeout"):
        pool.executor(max_workers=2)


def test_an_executor_of_a_pool_that_has_ended_raises_as_one_that_was_shut_down() -> None:
    pool = parpool(1, name="ended")
    executor = pool.executor()
    waiting = [executor.submit(time.sleep, 600) for _ in range(3)]
    pool.shutdown(wait_for_tasks=False)

    assert all(future.cancelled() for future in waiting)
    assert waiting[0].cancel()
    with pytest.raises(RuntimeError, match="has ended"):
        executor.submit(os.getpid)
    with pytest.raises(PoolClosedError):
        pool.executor()
    executor.shutdown()


# --- map -------------------------------------------------------------------------------


@pytest.mark.parametrize("chunksize", [1, 3, 100])
@pytest.mark.parametrize("buffersize", [None, 2])
def test_map_gives_the_results_in_order(
    executor: PoolExecutor, chunksize: int, buffersize: int | None
) -> None:
    results = executor.map(pow, range(10), range(10), chunksize=chunksize, buffersize=buffersize)

    assert list(results) == [n**n for n in range(10)]


def test_map_yields_each_result_before_the_last_call_has_ended(
    executor: PoolExecutor, tmp_path: Path
) -> None:
    open_gate, gate = tmp_path / "open", tmp_path / "gate"
    open_gate.touch()
    results = executor.map(wait_for, [open_gate, gate], timeout=TIMEOUT_S)

    assert next(results) == "open"
    gate.touch()
    assert next(results) == "gate"


def test_map_reads_no_further_ahead_than_it_may(executor: PoolExecutor) -> None:
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(10):
            read.append(number)
            yield number

    results = executor.map(abs, numbers(), buffersize=2)
    assert read == [0, 1]
    assert next(results) == 0
    assert read == [0, 1, 2]
    assert list(results) == list(range(1, 10))


def test_maps_time_out_cancels_what_waits_and_spares_what_runs(
    executor: PoolExecutor, tmp_path: Path
) -> None:
    holders = held(executor, tmp_path / "gate")
    results = executor.map(abs, range(5), timeout=0.1)

    with pytest.raises(TimeoutError):
        next(results)

    assert set(executor._all_open()) == set(holders)
    (tmp_path / "gate").touch()
    assert [future.result(TIMEOUT_S) for future in holders] == ["gate", "gate"]


def test_maps_error_comes_in_its_turn(executor: PoolExecutor) -> None:
    results = executor.map(divmod, [1, 1, 1, 1], [2, 3, 0, 5])

    assert [next(results), next(results)] == [(0, 1), (0, 1)]
    with pytest.raises(ZeroDivisionError):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


@pytest.mark.parametrize("wrong", [{"chunksize": 0}, {"chunksize": -1}, {"buffersize": 0}])
def test_map_refuses_sizes_that_make_no_sense(executor: PoolExecutor, wrong: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        executor.map(abs, [1], **wrong)


class Bag:
    """An object that can be referred to weakly."""


@pytest.mark.parametrize("chunksize", [1, 4])
def test_map_lets_go_of_each_result(executor: PoolExecutor, chunksize: int) -> None:
    for bag in executor.map(lambda _: Bag(), range(8), chunksize=chunksize):
        reference = weakref.ref(bag)
        del bag
        gc.collect()
        # The thread that has brought it may be about to let go of it.
        wait_until(lambda of=reference: of() is None, TIMEOUT_S, "the end of the result")


# --- cancel and shutdown ---------------------------------------------------------------


def test_a_waiting_call_can_be_cancelled_and_a_running_one_cannot(
    executor: PoolExecutor, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    holders = held(executor, gate)
    waiting = executor.submit(Path.touch, tmp_path / "ran")

    assert [future.cancel() for future in holders] == [False, False]
    assert waiting.cancel()
    assert waiting.cancel()  # again
    assert waiting.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result()
    gate.touch()

    assert [future.result(TIMEOUT_S) for future in holders] == ["gate", "gate"]
    assert not holders[0].cancel()
    executor.submit(abs, 1).result(TIMEOUT_S)
    assert not (tmp_path / "ran").exists()


def test_what_was_cancelled_never_runs_whatever_the_moment(
    executor: PoolExecutor, tmp_path: Path
) -> None:
    names = [tmp_path / str(number) for number in range(200)]
    futures = [executor.submit(Path.touch, name) for name in names]
    cancelled = [future.cancel() for future in reversed(futures)][::-1]
    concurrent.futures.wait(futures, TIMEOUT_S)

    assert [name.exists() for name in names] == [not was for was in cancelled]


def test_a_shutdown_cancels_only_what_waits_if_it_is_asked_to(pool: Pool, tmp_path: Path) -> None:
    executor = pool.executor()
    holders = held(executor, tmp_path / "gate")
    waiting = [executor.submit(abs, 1) for _ in range(20)]

    executor.shutdown(wait=False, cancel_futures=True)

    assert all(future.cancelled() for future in waiting)
    (tmp_path / "gate").touch()
    assert [future.result(TIMEOUT_S) for future in holders] == ["gate", "gate"]


def test_a_shutdown_waits_for_calls_and_their_callbacks(pool: Pool) -> None:
    seen: list[int] = []
    with pool.executor() as executor:
        for number in range(30):
            future = executor.submit(abs, number)
            future.add_done_callback(lambda done: seen.append(done.result()))

    assert sorted(seen) == list(range(30))


def test_a_shutdown_without_wait_lets_the_calls_end(pool: Pool) -> None:
    executor = pool.executor()
    futures = [executor.submit(abs, number) for number in range(10)]

    executor.shutdown(wait=False)

    assert [future.result(TIMEOUT_S) for future in futures] == list(range(10))


def test_an_executor_that_is_dropped_lets_its_calls_end_and_its_thread_goes(pool: Pool) -> None:
    def threads() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "mgpu-executor-callbacks"]

    wait_until(lambda: not threads(), TIMEOUT_S, "the end of earlier executors' threads")
    called = threading.Event()
    executor = pool.executor()
    future = executor.submit(abs, -3)
    future.add_done_callback(lambda _: called.set())
    results = executor.map(abs, range(10))
    del executor

    assert future.result(TIMEOUT_S) == 3
    assert list(results) == list(range(10))
    assert called.wait(TIMEOUT_S)
    del future, results
    gc.collect()
    wait_until(lambda: not threads(), TIMEOUT_S, "the end of the thread")


def test_cancel_all_ends_an_executors_running_calls(executor: PoolExecutor, tmp_path: Path) -> None:
    holders = held(executor, tmp_path / "never")

    assert cancel_all() == 2
    assert all(future.cancelled() for future in holders)


# --- hazards ---------------------------------------------------------------------------


class Unpicklable:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("cannot be pickled")


class Rebuilt:
    """Calls a function when it is unpickled."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.call = call
        self.args = args

    def __reduce__(self) -> Any:
        return self.call, self.args


def fail(error: type[BaseException]) -> None:
    raise error("on purpose")


def give(make: Callable[..., Any], *args: Any) -> Any:
    return make(*args)


def give_rebuilt(*args: Any) -> Rebuilt:
    return Rebuilt(*args)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        ((abs, Unpicklable()), PackingError, "cannot be pickled"),
        ((abs, threading.Lock()), PackingError, "lock"),
        ((give, Unpicklable), PackingError, "cannot be pickled"),
        ((give, threading.Lock), PackingError, "lock"),
        ((abs, Rebuilt(fail, ValueError)), PackingError, "on purpose"),
        ((give_rebuilt, fail, ValueError), PackingError, "on purpose"),
        ((fail, KeyError), KeyError, "on purpose"),
        ((fail, SystemExit), SystemExit, "on purpose"),
        ((os._exit, 3), EngineDiedError, "code 3"),
        ((abs, Rebuilt(os._exit, 3)), EngineDiedError, "code 3"),
        ((os.abort,), EngineDiedError, "SIGABRT"),
    ],
    ids=[
        "a task's pickling fails",
        "a task holds a lock",
        "a result's pickling fails",
        "a result is a lock",
        "a task's unpickling fails",
        "a result's unpickling fails",
        "an error",
        "an exit",
        "a death",
        "a death at unpickling",
        "a crash",
    ],
)
def test_what_goes_wrong_is_told_by_its_future_and_the_others_go_on(
    executor: PoolExecutor, call: tuple[Any, ...], error: type[BaseException], match: str
) -> None:
    before = [executor.submit(abs, number) for number in range(5)]
    bad = executor.submit(*call)
    after = [executor.submit(abs, number) for number in range(5)]

    with pytest.raises(error, match=match):
        bad.result(TIMEOUT_S)

    assert [future.result(TIMEOUT_S) for future in before + after] == [*range(5), *range(5)]


def test_a_result_that_exits_when_it_is_unpickled_does_not_end_the_delivery(
    executor: PoolExecutor,
) -> None:
    with pytest.raises((SystemExit, PackingError)):
        executor.submit(give_rebuilt, fail, SystemExit).result(TIMEOUT_S)

    assert executor.submit(give, list, "ab").result(TIMEOUT_S) == ["a", "b"]


def test_unpicklable_calls_in_a_map_do_not_stop_the_rest(executor: PoolExecutor) -> None:
    results = executor.map(abs, [1, threading.Lock(), 3])

    assert next(results) == 1
    with pytest.raises(PackingError):
        next(results)


def test_no_call_stays_listed_after_cancels_errors_and_deaths(
    pool: Pool, executor: PoolExecutor
) -> None:
    calls = [(abs, -1), (fail, KeyError), (os._exit, 3), (abs, threading.Lock())]
    futures = [executor.submit(*calls[number % 4]) for number in range(24)]
    for future in futures[12:]:
        future.cancel()
    concurrent.futures.wait(futures, TIMEOUT_S)

    assert {future.state for future in futures} == {"finished", "failed", "cancelled"}
    wait_until(lambda: pool.tasks() == [], TIMEOUT_S)
    wait_until(lambda: not any(engine.task for engine in pool.engines), TIMEOUT_S)


def test_many_calls_from_many_threads_all_come_back(executor: PoolExecutor) -> None:
    sums: dict[int, int] = {}

    def work(number: int) -> None:
        sums[number] = sum(executor.map(abs, range(200)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)

    assert sums == dict.fromkeys(range(5), sum(range(200)))


def test_callbacks_may_submit_and_wait_for_more(executor: PoolExecutor) -> None:
    answers: list[int] = []
    have_all = threading.Event()

    def go_on(future: Any) -> None:
        answers.append(executor.submit(abs, future.result() - 1).result(TIMEOUT_S))
        if len(answers) == 5:
            have_all.set()

    for number in range(1, 6):
        executor.submit(abs, number).add_done_callback(go_on)

    assert have_all.wait(TIMEOUT_S)
    assert sorted(answers) == list(range(5))


def test_a_callback_that_fails_does_not_end_the_others(executor: PoolExecutor) -> None:
    called = threading.Event()
    future = executor.submit(abs, 1)
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: called.set())

    assert called.wait(TIMEOUT_S)


def test_calls_go_on_within_a_callback_of_tasks(pool: Pool, executor: PoolExecutor) -> None:
    async def twice(number: int) -> int:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(executor, abs, number) * 2

    (doubled,) = after_each([pool.submit(abs, -4)], lambda number: asyncio.run(twice(number)))

    assert doubled.result(TIMEOUT_S) == 8


def test_objects_of_a_call_are_let_go(executor: PoolExecutor) -> None:
    gone = threading.Event()
    bag = Bag()
    weakref.finalize(bag, gone.set)
    executor.submit(id, bag)
    del bag

    assert gone.wait(TIMEOUT_S)


# --- Stop ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "list(executor.map(hold, range(10)))",
        "futures = [executor.submit(hold, 0) for _ in range(10)]",
    ],
    ids=["in map", "at the end of the block"],
)
def test_a_stop_ends_the_calls_of_a_with_block(nb: Notebook, body: str) -> None:
    nb.check("import time\ndef hold(_):\n    time.sleep(600)\npool = mgpu.current_pool()")
    cell = nb.submit(
        f"with pool.executor() as executor:\n    print('begun', flush=True)\n    {body}"
    )
    nb.wait_for_output(cell, "begun")

    nb.stop()

    assert nb.wait(cell).ename == "KeyboardInterrupt"
    assert nb.value("len(pool.tasks())") == 0
    assert nb.value("pool.submit(abs, -1).result(60)") == 1


def test_a_stop_while_a_with_block_ends_its_calls_leaves_none(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    futures: list[Any] = []

    def stop(_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    def run_block() -> None:
        with pool.executor() as executor:
            futures.extend(executor.submit(time.sleep, 600) for _ in range(3))
            monkeypatch.setattr("jupyter_mgpu.client.executor.cancel_all", stop)
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            run_block()
        assert concurrent.futures.wait(futures, TIMEOUT_S).not_done == set()
        assert all(future.cancelled() for future in futures)
    finally:
        cancel_all(futures)
