"""Loops that are divided into tasks: they are put together again, and a look ends nothing."""

import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_mgpu import kept_loops, tasks
from jupyter_mgpu.cli.shown import tasks as cli_tasks
from jupyter_mgpu.futures import CancelledError, TaskFuture, wait
from jupyter_mgpu.on_engine.loop_parts import run_part, wrap
from jupyter_mgpu.owner.journal import RECENT_TASKS
from jupyter_mgpu.owner.outside import describe_tasks
from jupyter_mgpu.pool import Pool
from notebooks import wait_for_file, wait_until


def submit(pool: Pool, function: Any, first: int, items: list[Any], total: int) -> TaskFuture:
    key = f"{function.__name__}-{total}"  # engines keep the function of a loop by it
    part_of = kept_loops.PartOf(
        loop=key, name="scan", first=first, size=len(items), total=total, collects=False
    )
    packed = [wrap((item,)) for item in items]
    arguments = (key, wrap(function), first, packed, None)
    return pool.submit_task(run_part, arguments, {"collects": False}, part=part_of)


def test_an_error_of_a_loop_that_is_brought_back_leaves_the_other_parts_alone(
    pool: Pool, tmp_path: Path
) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"

    def item(index: int) -> int:
        import time

        if index == 0:
            raise LookupError("on purpose")
        begun.touch()
        while not go.exists():
            time.sleep(0.01)
        return index

    fails, waits = submit(pool, item, 0, [0], 2), submit(pool, item, 1, [1], 2)
    wait_for_file(begun)
    assert isinstance(fails.exception(20), LookupError)

    loop = kept_loops.bring_back([fails, waits], pool)

    wait_until(lambda: loop.running() or waits.running(), 10)
    assert not loop.done()
    go.touch()
    with pytest.raises(LookupError, match="on purpose") as caught:
        loop.result(20)
    assert caught.value.results == {1: 1}
    assert waits.result() is not None


def test_a_loop_that_was_not_sent_to_its_end_says_so(pool: Pool) -> None:
    part = submit(pool, abs, 0, [-1, -2], 5)

    loop = kept_loops.bring_back([part], pool)

    assert "3 of 5 are missing" in str(loop.exception(20))
    assert loop.results == {0: 1, 1: 2}


def test_a_loop_that_is_asked_to_stop_keeps_what_was_finished(pool: Pool, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def item(index: int) -> int:
        import time

        from jupyter_mgpu import stop_requested

        while index and not stop_requested():
            begun.touch()
            time.sleep(0.01)
        return index

    wish = kept_loops.LoopWish("stopped", 9, seed=None, chunk=3, workers=1, collects=False)
    loop = kept_loops.start(pool, item, [range(9)], wish)
    wait_for_file(begun)

    loop.request_stop()

    with pytest.raises(CancelledError):
        loop.result(20)
    assert loop.results == {0: 0, 1: 1}


def test_a_part_that_ends_while_its_loop_is_brought_back_counts_once(pool: Pool) -> None:
    part = submit(pool, abs, 0, [-1, -2], 2)
    part.result(20)

    loop = kept_loops.bring_back([part, part], pool)

    assert loop.result(20) == [1, 2]


def test_a_stop_while_a_loop_is_sent_ends_it(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, sent = pool.owner.submit, []

    def submit_and_stop(task: Any) -> None:
        submit(task)
        sent.append(task)
        if len(sent) == 3:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(pool.owner, "submit", submit_and_stop)
    wish = kept_loops.LoopWish("sent", 9, seed=None, chunk=1, workers=None, collects=False)
    with pytest.raises(KeyboardInterrupt):
        kept_loops.start(pool, time.sleep, [[60] * 9], wish)

    wait_until(lambda: not pool.tasks(), 20, "the end of all that was sent")


def test_a_task_that_is_newer_than_a_loop_of_its_name_is_loaded(pool: Pool) -> None:
    assert submit(pool, abs, 0, [-1], 1).result(20)
    assert tasks.load("scan").result(20) == [1]

    assert pool.submit_task(abs, (-3,), name="scan").result(20) == 3

    assert tasks.load("scan").result(20) == 3


def test_a_loop_that_has_ended_is_one_task_for_the_command_line(pool: Pool) -> None:
    def quotient(index: int) -> int:
        print("item", index)
        return 1 // index

    parts = [submit(pool, quotient, first, [first], 3) for first in (2, 1, 0)]
    wait(parts)
    pool.owner.flush_journal()

    shown = cli_tasks("scan").value

    assert shown["state"] == "failed"
    assert shown["diary"] == "item 0\nitem 1\nitem 2\n"
    assert shown["error"].startswith("ZeroDivisionError")
    rows = [row for row in pool.task_rows() if row["name"].startswith("scan")]
    assert [(row["state"], row["progress"]) for row in rows[:1]] == [("failed", 2 / 3)]
    assert not [row for row in rows if "[" in row["name"]]


def test_a_loop_is_known_however_many_tasks_end_between_its_parts(pool: Pool) -> None:
    def reciprocal(index: int) -> float:
        return 1 / index

    wait([submit(pool, reciprocal, 0, [0], 2)])
    wait([pool.submit_task(abs, (-3,)) for _ in range(RECENT_TASKS + 5)])
    wait([submit(pool, reciprocal, 1, [1], 2)])

    row = describe_tasks([], pool.owner._core.journal)["ended"][0]
    assert (row["name"], row["state"], row["progress"]) == ("scan", "failed", 1 / 2)
    assert row["error"].startswith("ZeroDivisionError")
