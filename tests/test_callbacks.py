"""Callbacks of tasks: `after_each` and `after_all`, chained, failing, cancelled, in a notebook."""

import concurrent.futures
import threading
import time

import pytest

from jupyter_mgpu.callbacks import after_all, after_each
from jupyter_mgpu.calls import cancel_all
from jupyter_mgpu.futures import CancelledError, fetch_next, wait
from jupyter_mgpu.loops import parfor
from jupyter_mgpu.pool import Pool
from notebooks import Notebook, wait_until


def fail():
    raise ValueError("no")


def test_a_function_gets_each_result_and_its_own_result_is_a_future(pool: Pool) -> None:
    futures = [pool.submit(abs, -number) for number in range(4)]

    doubled = after_each(futures, lambda value: 2 * value)

    assert [future.result(60) for future in doubled] == [0, 2, 4, 6]


def test_callbacks_run_in_one_thread_of_the_kernel(pool: Pool) -> None:
    callbacks = after_each([pool.submit(abs, 1) for _ in range(4)], lambda _: threading.get_ident())

    idents = {future.result(60) for future in callbacks}
    assert len(idents) == 1
    assert idents != {threading.get_ident()}


def test_callbacks_run_in_the_order_in_which_the_tasks_end(pool: Pool, tmp_path) -> None:
    go_on = tmp_path / "go on"

    def wait_for() -> str:
        while not go_on.exists():
            time.sleep(0.005)
        return "slow"

    seen: list[str] = []
    slow = pool.submit(wait_for)
    callbacks = after_each([slow, pool.submit(str, "quick")], seen.append)
    callbacks[1].result(60)
    go_on.touch()
    callbacks[0].result(60)

    assert seen == ["quick", "slow"]


def test_a_failed_task_is_passed_over_and_its_error_handed_on(pool: Pool) -> None:
    seen: list[int] = []
    futures = [pool.submit(abs, -1), pool.submit(fail), pool.submit(abs, -2)]

    callbacks = after_each(futures, seen.append)
    wait(callbacks, 60)

    assert sorted(seen) == [1, 2]
    with pytest.raises(ValueError, match="no"):
        callbacks[1].result()


def test_a_failed_task_is_passed_as_a_future_if_that_is_asked_for(pool: Pool) -> None:
    futures = [pool.submit(abs, -1), pool.submit(fail)]

    states = after_each(futures, lambda future: str(future.state), pass_future=True)

    assert [future.result(60) for future in states] == ["finished", "failed"]


def test_after_all_gets_every_result_in_order_once(pool: Pool) -> None:
    futures = [pool.submit(abs, -number) for number in range(5)]

    total = after_all(after_each(futures, lambda value: value + 1), list)

    assert total.result(60) == [1, 2, 3, 4, 5]
    assert after_all([], len).result(60) == 0


def test_after_all_fails_with_the_first_failed_task(pool: Pool) -> None:
    called: list[object] = []
    futures = [pool.submit(abs, 1), pool.submit(fail)]

    with pytest.raises(ValueError, match="no"):
        after_all(futures, called.append).result(60)
    assert called == []
    states = after_all(futures, lambda all_: [str(f.state) for f in all_], pass_future=True)
    assert states.result(60) == ["finished", "failed"]


def test_a_cancelled_task_is_handed_on_as_cancelled(pool: Pool) -> None:
    task = pool.submit(time.sleep, 60)
    (callback,) = after_each([task], lambda _: None)

    task.cancel()

    with pytest.raises(CancelledError):
        callback.result(60)


def test_a_cancelled_callback_is_not_called(pool: Pool) -> None:
    task = pool.submit(time.sleep, 60)
    called: list[object] = []
    (callback,) = after_each([task], called.append, pass_future=True)

    assert callback.cancel()
    task.cancel()
    after_all([task], lambda _: None, pass_future=True).result(60)  # a later one has run
    assert called == []


def test_tasks_that_have_ended_and_foreign_futures_may_be_given(pool: Pool) -> None:
    ended = pool.submit(abs, -3)
    ended.result(60)
    foreign: concurrent.futures.Future[int] = concurrent.futures.Future()
    callbacks = after_each([ended, foreign], str)

    foreign.set_result(4)

    assert [future.result(60) for future in callbacks] == ["3", "4"]


def test_what_is_no_function_is_refused_at_once(pool: Pool) -> None:
    future = pool.submit(abs, -1)

    for register in (after_each, after_all):
        with pytest.raises(TypeError, match="A int was given where a function"):
            register([future], 3)


def test_all_tasks_and_loops_of_the_notebook_are_cancelled_together(pool: Pool) -> None:
    futures = [pool.submit(time.sleep, 60) for _ in range(4)]
    loop = parfor(time.sleep, [60] * 4, pool=pool, wait=False)

    assert cancel_all() == 5
    assert [str(future.state) for future in [*futures, loop]] == ["cancelled"] * 5
    assert cancel_all() == 0


def test_the_futures_of_callbacks_can_be_fetched(pool: Pool) -> None:
    callbacks = after_each([pool.submit(abs, -number) for number in range(3)], str)

    assert sorted(fetch_next(callbacks, 60).result() for _ in callbacks) == ["0", "1", "2"]
    with pytest.raises(ValueError, match="fetched before"):
        fetch_next(callbacks)


def test_output_and_errors_of_callbacks_stand_in_the_cell_that_registered_them(
    nb: Notebook, tmp_path
) -> None:
    go_on = tmp_path / "go on"
    nb.check(f"""
import pathlib, time
def wait_for():
    while not pathlib.Path({str(go_on)!r}).exists():
        time.sleep(0.005)
    return 7
def show(value):
    print("printed", value)
    display({{"shown": value}})
    1 / 0
""")
    registering = nb.check("shown = mgpu.after_each([mgpu.parfeval(wait_for)], show)")
    later = nb.submit("mgpu.wait(shown)\nprint('later')")
    go_on.touch()

    texts = collect(nb, later.msg_id)

    own = texts[registering.msg_id]
    assert "printed 7" in own
    assert "{'shown': 7}" in own
    assert "ZeroDivisionError" in own
    assert "Cell In[" in own
    assert texts[later.msg_id] == "later\n"


def collect(nb: Notebook, last_id: str) -> dict[str, str]:
    """Return what every cell shows until a cell has ended and the errors are there."""
    texts: dict[str, str] = {}
    is_idle = False

    def has_all() -> bool:
        nonlocal is_idle
        while nb.client.iopub_channel.msg_ready():
            message = nb.client.get_iopub_msg(timeout=1)
            parent, content = message["parent_header"].get("msg_id", ""), message["content"]
            shown = content.get("text") or content.get("data", {}).get("text/plain", "")
            if message["msg_type"] in ("stream", "display_data"):
                texts[parent] = texts.get(parent, "") + shown
            is_idle |= parent == last_id and content.get("execution_state") == "idle"
        return is_idle and "division by zero" in "".join(texts.values())  # its last words

    wait_until(has_all, 60, "the callback's output")
    return texts
