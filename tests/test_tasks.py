"""Calls in the background: results, errors, cancelling, and what is on disk afterwards."""

import asyncio
import concurrent.futures
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_mgpu import tasks
from jupyter_mgpu.blocks import spmd
from jupyter_mgpu.calls import parfeval, parfeval_on_all
from jupyter_mgpu.errors import (
    EngineDiedError,
    MgpuError,
    PackingError,
    RemoteError,
    TaskTimeoutError,
)
from jupyter_mgpu.futures import CancelledError, cancel_all, fetch_next
from jupyter_mgpu.on_engine.context import report, stop_requested
from jupyter_mgpu.owner import endpoint, journal
from jupyter_mgpu.pool import Pool
from notebooks import wait_for_file, wait_until


def identity(value):
    return value


def running(future) -> Callable[[], bool]:
    return lambda: future.running()


@pytest.mark.oldest
def test_a_call_gives_its_result_from_another_process(pool: Pool) -> None:
    future = pool.submit(os.getpid)

    assert future.result(10) in {engine.pid for engine in pool.engines}
    assert future.state == "finished"
    assert future.rank in (0, 1)
    assert future.created <= future.started <= future.finished


def test_a_closure_and_keyword_arguments_travel(pool: Pool) -> None:
    base = 40

    assert pool.submit(lambda a, *, b: base + a + b, 1, b=1).result(10) == 42


def test_an_error_keeps_its_type_and_names_the_rank(pool: Pool) -> None:
    def fail() -> None:
        raise ValueError("no such thing")

    future = pool.submit(fail)

    with pytest.raises(ValueError, match="no such thing") as caught:
        future.result(10)
    notes = "\n".join(caught.value.__notes__)
    assert f"rank {future.rank}" in notes
    assert "in fail" in notes
    assert future.state == "failed"


class OddError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class LockingError(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: OddError(1, 2), "1 and 2"),
        (lambda: LockingError("holds a lock"), "holds a lock"),
        (lambda: urllib.error.HTTPError("http://x", 404, "gone", None, None), "404"),
    ],
    ids=["two arguments", "a lock", "HTTPError"],
)
def test_an_odd_exception_arrives_with_its_message(pool: Pool, make, text: str) -> None:
    def fail() -> None:
        raise make()

    error = pool.submit(fail).exception(10)

    assert isinstance(error, type(make()) | RemoteError)
    assert text in str(error)


class BreaksOnArrival:
    def __init__(self, where: int) -> None:
        self.where = where

    def __reduce__(self):
        return _arrive, (self.where,)


def _arrive(home: int):
    if os.getpid() != home:
        raise RuntimeError("cannot be rebuilt here")
    return


def test_whatever_cannot_be_pickled_fails_within_two_seconds(pool: Pool) -> None:
    for future in parfeval_on_all(identity, 0, pool=pool):  # so that both know this module
        future.result(20)
    with pytest.raises(PackingError, match="lock"):
        pool.submit(identity, threading.Lock())

    def unpicklable():
        return {"deep": [threading.Lock()]}

    def breaks_at_home():
        return BreaksOnArrival(os.getpid())

    for future, words in (
        (pool.submit(identity, BreaksOnArrival(os.getpid())), "cannot be rebuilt here"),
        (pool.submit(unpicklable), r"\['deep'\]\[0\]"),
        (pool.submit(breaks_at_home), "cannot be rebuilt here"),
    ):
        with pytest.raises(PackingError, match=words):
            future.result(2)
    assert pool.submit(identity, 1).result(5) == 1


def test_the_arguments_are_those_of_the_submission(pool: Pool) -> None:
    import numpy as np

    big = np.zeros(100_000)
    blockers = [pool.submit(time.sleep, 0.3) for _ in pool.ranks]
    future = pool.submit(np.sum, big)
    big += 1

    assert future.result(10) == 0
    del blockers


def test_system_exit_ends_the_task_and_not_the_engine(pool: Pool) -> None:
    pids = {engine.pid for engine in pool.engines}

    assert isinstance(pool.submit(sys.exit, 3).exception(10), SystemExit)
    assert {engine.pid for engine in pool.engines} == pids


@pytest.mark.parametrize(
    "stuck",
    [
        lambda: time.sleep(999),
        lambda: exec("while 1: pass"),
        lambda: threading.Event().wait(),
        lambda: [lock.acquire() for lock in [threading.Lock()] * 2],
        lambda: subprocess.run(["sleep", "999"], check=False),
    ],
    ids=["sleep", "loop", "event", "lock", "subprocess"],
)
def test_cancel_ends_a_running_task_and_frees_its_engine(pool: Pool, stuck) -> None:
    pids = {engine.pid for engine in pool.engines}
    future = pool.submit(stuck)
    wait_until(running(future))

    assert future.cancel()

    assert future.state == "cancelled"
    wait_until(lambda: all(e.state == "idle" for e in pool.engines), 3, "a free engine")
    assert {engine.pid for engine in pool.engines} == pids
    with pytest.raises(CancelledError):
        future.result(1)


C_LOOP = "sum(range(10**12))  # holds the GIL and looks for no signal"
STUBBORN = """
import time
while True:
    try:
        while True:
            time.sleep(0.1)
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.parametrize("stuck", [C_LOOP, STUBBORN], ids=["C loop", "swallowed interrupt"])
def test_an_engine_that_does_not_stop_is_replaced(pool: Pool, stuck: str) -> None:
    future = pool.submit(exec, "from jupyter_mgpu import report; report(x=0)\n" + stuck)
    wait_until(lambda: future.metrics)
    wait_until(running(future))
    rank, before = future.rank, pool.engines[future.rank].pid

    future.cancel()

    wait_until(lambda: pool.engines[rank].pid not in (before, None), 60, "a new engine")
    wait_until(lambda: pool.engines[rank].state == "idle", 60, "a free engine")
    other = pool.engines[1 - rank]
    assert other.state == "idle"


def test_an_interrupt_never_hits_the_next_task(pool: Pool) -> None:
    for _ in range(20):
        future = pool.submit(time.sleep, 10)
        follower = pool.submit_task(time.sleep, (0.01,), rank=0)
        wait_until(running(future))
        future.cancel()
        assert follower.result(60) is None


def test_a_time_out_ends_the_task_at_that_time(pool: Pool) -> None:
    future = pool.submit_task(time.sleep, (600,), timeout=0.5)

    with pytest.raises(TaskTimeoutError, match=r"longer than its time-out of 0\.5 s"):
        future.result(60)

    assert 0.4 < (future.finished - future.started).total_seconds() < 3
    wait_until(lambda: all(e.state == "idle" for e in pool.engines), 3, "a free engine")


def test_waiting_too_long_leaves_the_task_alone(pool: Pool, tmp_path: Path) -> None:
    future = pool.submit(wait_for_file, tmp_path / "go")

    with pytest.raises(TimeoutError, match=r"still (queued|running) after 0\.1 s"):
        future.result(0.1)

    (tmp_path / "go").touch()
    assert future.result(60) is None


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(3), "exited with code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: ctypes.string_at(0), "SIGSEGV"),
    ],
    ids=["_exit", "SIGSEGV", "SIGKILL", "null pointer"],
)
def test_a_death_is_told_at_once_and_the_engine_replaced(
    pool: Pool, tmp_path: Path, end, words: str
) -> None:
    mark = tmp_path / "ends"

    def die() -> None:
        mark.write_text(str(time.monotonic()))  # one clock for all processes
        end()

    future = pool.submit(die)

    with pytest.raises(EngineDiedError, match=words) as caught:
        future.result(60)

    assert time.monotonic() - float(mark.read_text()) < 2
    assert caught.value.rank == future.rank
    wait_until(lambda: all(e.state == "idle" for e in pool.engines), 60, "a new engine")
    assert {pool.submit_task(os.getpid, rank=r).result(60) for r in pool.ranks} == {
        engine.pid for engine in pool.engines
    }


def test_the_last_words_of_a_dead_engine_are_told(pool: Pool) -> None:
    def die_loudly() -> None:
        os.write(2, b"out of cheese\n")
        os.abort()

    error = pool.submit(die_loudly).exception(10)

    assert "SIGABRT" in str(error)
    assert "out of cheese" in str(error)


def test_a_killed_engines_signal_and_memory_are_told(pool: Pool) -> None:
    future = pool.submit(time.sleep, 60)
    wait_until(lambda: future.running() and pool.engines[future.rank].rss_bytes)

    os.kill(pool.engines[future.rank].pid, signal.SIGKILL)

    words = str(future.exception(60))
    assert "SIGKILL (by a user, or by the kernel when memory ran out)" in words
    assert re.search(r"Its memory was [1-9]\d* MiB at the last look", words)


def test_retries_are_for_engine_death(pool: Pool, tmp_path) -> None:
    marker = tmp_path / "tries"

    def die_twice() -> str:
        with marker.open("a") as file:
            file.write("x")
        if marker.stat().st_size < 3:
            os._exit(1)
        return "alive"

    def fail() -> None:
        with marker.open("a") as file:
            file.write("y")
        raise ValueError("once")

    assert pool.submit_task(die_twice, retries=3).result(100) == "alive"
    with pytest.raises(ValueError, match="once"):
        pool.submit_task(fail, retries=3).result(10)
    assert marker.read_text() == "xxxy"


def test_queued_tasks_survive_the_death_of_an_engine(pool: Pool) -> None:
    futures = [pool.submit(identity, number) for number in range(200)]
    os.kill(pool.engines[0].pid, signal.SIGKILL)

    outcomes = [future.exception(20) for future in futures]

    lost = [error for error in outcomes if error is not None]
    assert len(lost) <= 1
    assert all(isinstance(error, EngineDiedError) for error in lost)
    assert pool.tasks() == []


@pytest.mark.timeout(300)
def test_twenty_deaths_leave_controller_queue_and_every_future_in_order(pool: Pool) -> None:
    controller = pool.owner.cluster.controller_pid
    futures = []
    for death in range(20):
        rank = death % 2
        wait_until(lambda r=rank: pool.engines[r].state in ("idle", "busy"), 60, "an engine")
        futures += [pool.submit(identity, number) for number in range(200)]
        pid = pool.engines[rank].pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda r=rank, p=pid: pool.engines[r].pid != p, 60, "its end")

    lost = [error for future in futures if (error := future.exception(20)) is not None]

    assert len(lost) <= 20
    assert all(isinstance(error, EngineDiedError) for error in lost)
    assert pool.owner.cluster.controller_pid == controller
    assert pool.tasks() == []


def test_no_ghost_is_left_of_tasks_that_ended_in_any_way(pool: Pool) -> None:
    def fail() -> None:
        raise ValueError("no")

    killed = pool.submit_task(time.sleep, (60,), rank=0)
    cancelled = pool.submit_task(time.sleep, (60,), rank=1)
    waiting = [pool.submit(identity, number) for number in range(6)]
    others = [pool.submit(fail), pool.submit_task(time.sleep, (60,), timeout=0.2)]
    wait_until(lambda: killed.running() and cancelled.running())

    for future in (cancelled, *waiting[::2]):
        future.cancel()
    os.kill(pool.engines[0].pid, signal.SIGKILL)

    concurrent.futures.wait([killed, cancelled, *waiting, *others], 60)
    assert {str(future.state) for future in waiting} == {"cancelled", "finished"}
    assert {str(future.state) for future in (killed, *others)} == {"failed"}
    wait_until(lambda: all(engine.state == "idle" for engine in pool.engines), 60, "idle engines")
    assert pool.tasks() == []
    assert (pool.status().queued, pool.status().running) == (0, 0)
    assert endpoint.ask(pool.owner.socket, "tasks") == []


def test_a_slow_task_does_not_hold_others_back(pool: Pool, tmp_path: Path) -> None:
    slow = pool.submit(wait_for_file, tmp_path / "go")
    quick = [pool.submit(time.sleep, 0.01) for _ in range(20)]

    done, _ = concurrent.futures.wait(quick, 30)

    assert (len(done), slow.done()) == (20, False)
    (tmp_path / "go").touch()
    slow.result(10)


def test_a_higher_priority_starts_first(pool: Pool, tmp_path: Path) -> None:
    blockers = [pool.submit(wait_for_file, tmp_path / "go") for _ in pool.ranks]
    low = [pool.submit(wait_for_file, tmp_path / "end") for _ in range(4)]
    high = pool.submit_task(pow, (2, 2), priority=1)
    (tmp_path / "go").touch()

    assert high.result(30) == 4  # behind the others it would wait for their file

    (tmp_path / "end").touch()
    concurrent.futures.wait([*blockers, *low], 60)


def test_output_metrics_and_a_request_to_stop(pool: Pool) -> None:
    def train() -> int:
        step = 0
        while not stop_requested():
            step += 1
            print(f"step {step}")
            report(step=step, loss=1 / step)
            time.sleep(0.02)
        return step

    future = pool.submit_task(train, name="train")
    wait_until(lambda: len(future.metrics) >= 3 and "step 2" in future.diary)
    future.request_stop()

    steps = future.result(10)

    assert future.metrics[-1] == {"step": steps, "loss": 1 / steps}
    assert f"step {steps}\n" in future.diary
    assert "train" in repr(future)


def epochs(steps: int) -> str:
    """Run epochs of some steps until asked to end; say where that was."""
    while True:
        for step in range(steps):
            report(step=step)
            if stop_requested():
                return "in an epoch"
            time.sleep(0.005)
        if stop_requested(after="epoch"):
            return "after an epoch"


def test_a_task_may_be_asked_to_end_after_its_epoch(pool: Pool) -> None:
    future = pool.submit_task(epochs, (5,))
    wait_until(lambda: len(future.metrics) > 2)
    future.request_stop(after="epoch")
    assert future.result(10) == "after an epoch"
    assert len(future.metrics) % 5 == 0

    future = pool.submit_task(epochs, (10**9,))
    wait_until(running(future))
    future.request_stop(after="epoch")
    future.request_stop()  # the sooner one counts
    assert future.result(10) == "in an epoch"

    with pytest.raises(ValueError, match="after is 'batch', but it may be: 'step', 'epoch'"):
        future.request_stop(after="batch")


@pytest.mark.parametrize("after", ["step", "epoch"])
def test_a_task_that_waits_sees_the_wish_as_soon_as_it_runs(
    pool: Pool, tmp_path: Path, after: str
) -> None:
    hold = pool.submit_task(wait_for_file, (tmp_path / "go on",), rank=0)
    future = pool.submit_task(epochs, (5,), rank=0)
    assert future.state == "queued"

    endpoint.ask(pool.owner.socket, "request_stop", task=future.id, after=after)
    (tmp_path / "go on").touch()

    assert future.result(10) == {"step": "in an epoch", "epoch": "after an epoch"}[after]
    assert hold.result(10) is None


def test_what_a_task_has_printed_is_there_with_its_result(pool: Pool) -> None:
    def count() -> None:
        for number in range(20):
            print("line", number)

    for _ in range(100):
        future = pool.submit(count)
        future.result(10)
        assert future.diary.endswith("line 19\n")


def test_a_request_to_stop_may_come_before_its_task(pool: Pool, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"

    def hold() -> None:
        while not go_on.exists():
            time.sleep(0.005)

    def until_asked() -> str:
        while not stop_requested():
            time.sleep(0.005)
        return "asked"

    pool.submit_task(hold, rank=0)
    future = pool.submit_task(until_asked, rank=0)
    core = pool.owner._core
    header = {"op": "request_stop", "task": future.id}
    core.loop.call_soon_threadsafe(core._switchboard.send_control, core.engines[0], header)
    pool.owner.rpc(0, "status").result(10)  # which takes the same way, behind it
    go_on.touch()

    assert future.result(10) == "asked"


def test_a_task_tells_how_far_it_is(pool: Pool, tmp_path: Path) -> None:
    def work() -> None:
        report(step=0, progress=0.25, loss=2.0)
        report(progress=0.5)
        wait_for_file(tmp_path / "go")

    future = pool.submit(work)
    wait_until(lambda: future.progress == 0.5, 20, "the second report")
    (described,) = endpoint.ask(pool.owner.socket, "tasks")
    (tmp_path / "go").touch()
    future.result(20)

    assert described["progress"] == 0.5
    assert future.metrics == [{"step": 0, "loss": 2.0}]


@pytest.mark.parametrize("progress", [-0.1, 40, float("nan")])
def test_progress_is_a_share(progress: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        report(progress=progress)


def test_report_refuses_what_is_no_number() -> None:
    with pytest.raises(TypeError, match="'loss' is a list"):
        report(loss=[1, 2])


def test_futures_work_with_the_standard_library(pool: Pool) -> None:
    futures = [pool.submit(identity, number) for number in range(10)]

    done, pending = concurrent.futures.wait(futures, 10)
    assert (len(done), len(pending)) == (10, 0)
    assert {f.result() for f in concurrent.futures.as_completed(futures, 10)} == set(range(10))


def test_a_future_can_be_awaited_and_awaiting_never_cancels(pool: Pool, tmp_path: Path) -> None:
    async def main() -> None:
        assert await pool.submit(identity, 5) == 5
        future = pool.submit(wait_for_file, tmp_path / "go")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(future), 0.1)
        assert not future.cancelled()
        (tmp_path / "go").touch()
        assert await future is None

    async def _await(future):
        return await future

    asyncio.run(main())


def test_eight_threads_and_an_event_loop_submit_at_once(pool: Pool) -> None:
    results: list[int] = []

    def work(base: int) -> None:
        results.extend(pool.submit(identity, base + i).result(30) for i in range(10))

    threads = [threading.Thread(target=work, args=(n * 100,)) for n in range(8)]
    for thread in threads:
        thread.start()

    async def main() -> list[int]:
        return await asyncio.gather(*(_call(900 + i) for i in range(10)))

    async def _call(value: int) -> int:
        return await pool.submit(identity, value)

    results.extend(asyncio.run(main()))
    for thread in threads:
        thread.join(30)

    expected = [n * 100 + i for n in range(8) for i in range(10)] + [900 + i for i in range(10)]
    assert sorted(results) == sorted(expected)


def test_fetch_next_gives_futures_in_the_order_of_their_ends(pool: Pool, tmp_path: Path) -> None:
    slow, quick = pool.submit(wait_for_file, tmp_path / "go"), pool.submit(time.sleep, 0.05)
    futures = [slow, quick]

    assert fetch_next(futures, timeout=60) is quick
    assert fetch_next(futures, timeout=0.01) is None
    (tmp_path / "go").touch()
    assert fetch_next(futures, timeout=60) is slow
    with pytest.raises(ValueError, match="fetched before"):
        fetch_next(futures)


def test_a_failed_future_is_fetched_before_it_raises(pool: Pool) -> None:
    future = pool.submit(divmod, 1, 0)

    assert fetch_next([future], timeout=10) is future
    with pytest.raises(ZeroDivisionError):
        future.result()


def test_a_cancelled_task_says_its_name(pool: Pool) -> None:
    future = pool.submit_task(time.sleep, (60,), name="given up")
    future.cancel()

    for ask in (future.result, future.exception):
        with pytest.raises(CancelledError, match="'given up' was cancelled"):
            ask()


def test_cancel_all_empties_the_queue(pool: Pool) -> None:
    futures = [pool.submit(time.sleep, 30) for _ in range(6)]

    assert cancel_all(futures) == 6

    assert all(future.cancelled() for future in futures)
    assert pool.submit(identity, 1).result(60) == 1


def test_callbacks_run_in_one_thread_and_in_order(pool: Pool) -> None:
    seen: list[tuple[int, str]] = []
    done = threading.Event()

    def note(future) -> None:
        seen.append((future.result(), threading.current_thread().name))
        if len(seen) == 5:
            done.set()

    for number in range(5):
        pool.submit_task(identity, (number,), rank=0).add_done_callback(note)

    assert done.wait(10)
    assert [value for value, _ in seen] == list(range(5))
    assert {name for _, name in seen} == {"mgpu-callbacks"}


def test_parfeval_uses_the_current_pool_and_runs_in_place_on_an_engine(pool: Pool) -> None:
    def outer() -> tuple[int, int]:
        from jupyter_mgpu.calls import parfeval as inner

        return os.getpid(), inner(os.getpid).result()

    here, there = parfeval(outer, pool=pool).result(10)

    assert here == there
    assert [f.result(10) for f in parfeval_on_all(os.getpid, pool=pool)] == [
        engine.pid for engine in pool.engines
    ]


def test_an_engine_cannot_start_a_pool(pool: Pool) -> None:
    def start() -> None:
        from jupyter_mgpu.start import parpool

        parpool(2)

    with pytest.raises(MgpuError, match="an engine has no pool of its own"):
        pool.submit(start).result(10)


def test_map_keeps_the_order_and_ends_the_rest_after_an_error(pool: Pool) -> None:
    assert pool.map(pow, range(5), [2] * 5) == [0, 1, 4, 9, 16]

    with pytest.raises(ZeroDivisionError):
        pool.map(divmod, [1, 1, 1], [1, 0, 1])
    assert pool.tasks() == []


def test_what_is_no_function_is_refused_at_once(pool: Pool) -> None:
    for call in (parfeval, spmd, pool.submit):
        with pytest.raises(TypeError, match="A int was given where a function is called"):
            call(identity(3))


def test_choices_that_make_no_sense_are_refused(pool: Pool) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        pool.submit_task(identity, (1,), timeout=0)
    with pytest.raises(ValueError, match="0 or more"):
        pool.submit_task(identity, (1,), retries=-1)
    with pytest.raises(MgpuError, match="Rank 7 was asked for"):
        pool.submit_task(identity, (1,), rank=7).result(5)


def test_a_file_of_tasks_that_another_kernel_has_just_removed_does_no_harm() -> None:
    gone = journal.folder() / "gone.tasks"  # listed, and not there
    gone.symlink_to("nowhere")
    try:
        journal.prune()
        assert isinstance(tasks.list(), list)
    finally:
        gone.unlink()


def test_ended_tasks_can_be_read_from_disk(pool: Pool) -> None:
    def talk(value: int) -> dict[str, int]:
        print("said it")
        report(step=1, loss=0.5)
        return {"value": value}

    def fail() -> None:
        raise ValueError("on disk")

    pool.submit_task(talk, (3,), name="disk-ok").result(10)
    pool.submit_task(fail, name="disk-bad").exception(10)
    hanging = pool.submit_task(time.sleep, (30,), name="disk-cancelled")
    hanging.cancel()
    wait_until(lambda: any(r.name == "disk-cancelled" for r in tasks.list()))

    record = tasks.load("disk-ok")
    assert record.result() == {"value": 3}
    assert record.diary == "said it\n"
    assert record.metrics == [{"step": 1, "loss": 0.5}]
    with pytest.raises(ValueError, match="on disk"):
        tasks.load("disk-bad").result()
    with pytest.raises(CancelledError):
        tasks.load("disk-cancelled").result()
    with pytest.raises(MgpuError, match="No task 'nothing' is on disk"):
        tasks.load("nothing")


def test_a_task_can_be_read_from_disk_as_soon_as_it_has_ended(pool: Pool) -> None:
    for number in range(5):
        pool.submit_task(identity, (number,), name=f"at once {number}").result(10)

        assert tasks.load(f"at once {number}").result() == number


def test_a_failed_task_shows_its_last_metrics_what_it_printed_and_its_error(pool: Pool) -> None:
    def fail() -> None:
        print("before")
        report(step=3, loss=0.25)
        raise ValueError("too late")

    pool.submit_task(fail, name="shown").exception(10)

    shown = repr(tasks.show("shown")).splitlines()
    assert re.fullmatch(
        r"<TaskRecord 'shown' failed on rank \d, [-\d]+ [:\d]+ UTC: step=3, loss=0.25>", shown[0]
    )
    assert shown[1] == "before"
    assert 'raise ValueError("too late")' in "\n".join(shown)
    assert shown[-1] == "ValueError: too late"
