"""Whatever happens beside a task, whoever waits for it hears of its end."""

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_mgpu import Constant, after_each, parfor, spmd, stop_requested
from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.errors import EngineDiedError, MgpuError, PoolClosedError, PoolStartError
from jupyter_mgpu.futures import wait
from jupyter_mgpu.loops.loop import Loop
from jupyter_mgpu.loops.options import LoopOptions
from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.owner.engine_room import EngineRoom
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.pools import find_pool
from jupyter_mgpu.start import parpool
from notebooks import is_alive, wait_for_file, wait_until


@pytest.fixture
def single() -> Iterator[Pool]:
    """A pool of one engine."""
    pool = parpool(1, name="single")
    yield pool
    pool.shutdown(wait_for_tasks=False)


# --- engines ---------------------------------------------------------------------------


def test_an_engine_that_dies_while_others_start_ends_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def prove(room: EngineRoom, engine: EngineRecord) -> None:
        """Kill the first engine when it is ready; the second one is not until that is known."""
        if engine.rank == 1:
            first = room.engines[0]
            while first.state != EngineState.IDLE:
                await asyncio.sleep(0.01)
            os.kill(first.process.pid, signal.SIGKILL)
            while first.state != EngineState.DEAD:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(EngineRoom, "_prove", prove)
    with pytest.raises(PoolStartError, match="rank 0"):
        parpool(2, name="early")


def test_tasks_fail_when_an_engine_cannot_be_started_again(single: Pool) -> None:
    shutil.rmtree(single.owner.plan.folder / "profile" / "log")
    os.kill(single.engines[0].pid, signal.SIGKILL)
    wait_until(lambda: single.engines[0].state == EngineState.DEAD, 60, "the death")

    with pytest.raises(MgpuError, match="could not be started again"):
        single.submit(abs, -1).result(60)


def test_what_runs_on_an_engine_fails_when_the_pool_shrinks() -> None:
    with parpool(2, name="shrinking") as pool:
        future = pool.submit_task(signal.pause, rank=1)
        wait_until(future.running, 60, "the task")

        pool.shrink(1)

        with pytest.raises(EngineDiedError, match="rank 1"):
            future.result(60)


def test_a_rank_that_leaves_while_its_engine_is_replaced_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with parpool(2, name="leaving") as pool:
        engine, room = pool.owner.engines[1], pool.owner._core._room
        held, ended = threading.Event(), threading.Event()

        async def hold(*_: object) -> None:
            held.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        monkeypatch.setattr(EngineRoom, "_prove", hold)
        pool.restart([1])
        assert held.wait(60)

        pool.shrink(1)

        assert ended.wait(60)
        wait_until(lambda: not room._jobs and engine.process is None, 60, "the restart's end")


def test_a_pool_ends_though_an_engine_cannot_say_what_it_holds() -> None:
    pool = parpool(1, name="silent", idle_timeout=4)
    pid = pool.engines[0].pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: pool.owner._core._switchboard._questions, 60, "a question")

    pool.shutdown(wait_for_tasks=False)

    assert not is_alive(pid)


def test_an_exception_that_cannot_be_packed_at_all_still_comes_through(single: Pool) -> None:
    class OddError(Exception):
        def __reduce__(self):
            raise GeneratorExit

    def fail() -> None:
        raise OddError("told")

    with pytest.raises(OddError, match="told"):
        single.submit(fail).result(60)
    assert single.submit(abs, -1).result(60) == 1


def test_a_clean_up_that_exits_leaves_its_engine(single: Pool) -> None:
    pid = single.submit(os.getpid).result(60)
    constant = Constant(3, cleanup=sys.exit)
    assert single.submit(lambda: constant.value).result(60) == 3

    constant.close()

    assert single.submit(os.getpid).result(60) == pid


# --- the kernel ------------------------------------------------------------------------


def test_a_loop_goes_on_though_its_chunks_have_ended_before_it_looks(single: Pool) -> None:
    loop = Loop(single, abs, [range(3)], LoopOptions(None, 1, None, "raise", None))
    assert loop._flight.feed()
    wait_until(lambda: not loop._flight._chunks, 60, "the chunk's end")

    assert not loop._flight.is_over
    assert loop.run() == [0, 1, 2]


def test_a_loop_that_is_asked_to_stop_cuts_no_item_off(single: Pool, tmp_path: Path) -> None:
    class Slow:
        def __reduce__(self):
            return wait_for_file, (tmp_path / "go",)

    def run(item: int) -> None:
        (tmp_path / f"begun{item}").touch()
        if item == 0:
            wait_for_file(tmp_path / "on")
        while item == 1 and not stop_requested():
            time.sleep(0.01)
        (tmp_path / f"ended{item}").touch()

    loop = parfor(run, range(2), chunk=1, pool=single, wait=False)
    wait_for_file(tmp_path / "begun0")
    late = single.submit_task(Slow, priority=1)
    (tmp_path / "on").touch()
    wait_for_file(tmp_path / "begun1")  # the kernel has not heard of it: it unpacks the late result

    loop.request_stop()

    wait_for_file(tmp_path / "ended1")
    (tmp_path / "go").touch()
    assert late.result(60) is None
    wait([loop], 60)
    assert loop.results == {0: None, 1: None}


def test_awaiting_a_task_waits_for_no_callback(single: Pool, tmp_path: Path) -> None:
    blocked = after_each([single.submit(abs, -1)], lambda _: wait_for_file(tmp_path / "go"))
    wait_until(lambda: blocked[0].running(), 60, "the callback")

    async def wait() -> int:
        return await asyncio.wait_for(single.submit(abs, -2), 60)

    assert asyncio.run(wait()) == 2
    (tmp_path / "go").touch()
    assert blocked[0].result(60) is None


def test_a_callback_that_exits_leaves_the_other_callbacks(single: Pool, tmp_path: Path) -> None:
    future = single.submit(wait_for_file, tmp_path / "go")
    future.add_done_callback(lambda _: sys.exit(1))
    followed = after_each([future], repr)
    (tmp_path / "go").touch()

    assert followed[0].result(60) == "None"


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_stop_during_a_submission_leaves_nothing(
    single: Pool, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool
) -> None:
    submit = single.owner.submit

    def submit_and_stop(task) -> None:
        monkeypatch.setattr(single.owner, "submit", submit)
        if is_sent:
            submit(task)
        raise KeyboardInterrupt

    for work in (single.submit, lambda fn: spmd(fn, pool=single)):
        monkeypatch.setattr(single.owner, "submit", submit_and_stop)
        with pytest.raises(KeyboardInterrupt):
            work(signal.pause)
        wait_until(lambda: not single._activity._is_active(), 60, "the task's end")
        assert single.submit(abs, -1).result(60) == 1


def test_what_the_owner_of_a_pool_does_not_take_any_more_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = parpool(1, name="last")
    monkeypatch.setattr(pool.owner, "submit", lambda _: None)  # as in its loop's last moment
    future = pool.submit(abs, -1)
    loop = parfor(abs, [-1], pool=pool, wait=False)

    pool.shutdown(wait_for_tasks=False)

    wait([future, loop], 60)
    assert future.cancelled()
    assert isinstance(loop.exception(0), PoolClosedError)


def test_a_stop_while_a_pool_ends_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = parpool(1, name="impatient")

    def stop(_timeout) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(pool.owner, "wait", stop)
    with pytest.raises(KeyboardInterrupt):
        pool.shutdown(wait_for_tasks=False)

    assert not pool.is_open
    assert find_pool("impatient") is None
    assert pool.owner.wait(60)
