"""`DataQueue`: between kernel and engines, bounded, in order, without losses; ends and Stops."""

import gc
import os
import queue
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jupyter_mgpu import DataQueue, count_bytes, parfor, parpool
from jupyter_mgpu.errors import PackingError, PoolClosedError, QueueClosedError
from jupyter_mgpu.exchange import queues
from jupyter_mgpu.exchange.channel import MOST_BYTES
from jupyter_mgpu.pool import Pool
from notebooks import Notebook, wait_until

STOP_S = 2.0


@pytest.fixture
def duo():
    """A pool of its own."""
    opened = parpool(2, name="duo")
    yield opened
    opened.shutdown(wait_for_tasks=False)


def produce(items: DataQueue, values: Any, made: Path | None = None) -> int:
    for number, value in enumerate(values):
        items.put(value)
        if made is not None:
            made.write_text(str(number + 1))
    return os.getpid()


def get_all(items: DataQueue, num: int) -> list[Any]:
    return [items.get(timeout=60) for _ in range(num)]


def count_of(made: Path) -> int:
    return int(made.read_text() or 0) if made.exists() else 0


def test_an_engine_sends_to_the_kernel_in_order(pool: Pool) -> None:
    items = DataQueue()

    pid = pool.submit(produce, items, range(50)).result(60)

    assert items.qsize() == 50
    assert get_all(items, 50) == list(range(50))
    assert items.empty()
    assert pid != os.getpid()


def test_the_kernel_sends_to_an_engine_that_waits(pool: Pool) -> None:
    items = DataQueue()
    call = pool.submit(get_all, items, 3)

    for value in ("a", None, {"b": [1]}):
        items.send(value)

    assert call.result(60) == ["a", None, {"b": [1]}]


def test_engines_send_to_each_other_and_each_item_goes_to_one(pool: Pool) -> None:
    work, done = DataQueue(), DataQueue()

    def double(work: DataQueue, done: DataQueue) -> None:
        for value in work:
            done.put(2 * value)

    workers = [pool.submit_task(double, (work, done), rank=rank) for rank in pool.ranks]
    for value in range(100):
        work.put(value)
    work.close()
    for worker in workers:
        worker.result(60)

    assert sorted(get_all(done, 100)) == list(range(0, 200, 2))


def test_the_order_of_each_producer_is_kept(pool: Pool) -> None:
    items = DataQueue(maxsize=3)

    def produce_own(items: DataQueue, name: int) -> None:
        for number in range(40):
            items.put((name, number))

    calls = [pool.submit_task(produce_own, (items, rank), rank=rank) for rank in pool.ranks]
    got = get_all(items, 80)

    for rank in pool.ranks:
        assert [number for name, number in got if name == rank] == list(range(40))
        calls[rank].result(60)


def test_a_queue_made_on_an_engine_receives_from_the_kernel(pool: Pool) -> None:
    to_kernel = DataQueue()

    def serve(to_kernel: DataQueue) -> Any:
        from jupyter_mgpu import DataQueue

        own = DataQueue()
        to_kernel.put(own)
        return own.get(timeout=60)

    call = pool.submit(serve, to_kernel)
    to_kernel.get(timeout=60).put("command")

    assert call.result(60) == "command"


def test_loops_and_threads_of_tasks_put_as_well(pool: Pool) -> None:
    items = DataQueue()

    def put_in_threads(i: int) -> int:
        threads = [threading.Thread(target=items.put, args=((i, t),)) for t in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return i

    assert parfor(put_in_threads, range(4), pool=pool) == [0, 1, 2, 3]
    assert sorted(get_all(items, 12)) == [(i, t) for i in range(4) for t in range(3)]


def test_a_fast_producer_waits_for_a_full_queue(pool: Pool, tmp_path) -> None:
    items, made = DataQueue(maxsize=5), tmp_path / "made"
    call = pool.submit(produce, items, range(20), made)
    wait_until(lambda: count_of(made) == 5, what="a full queue")

    assert not call.done()
    assert items.qsize() == 5
    assert get_all(items, 20) == list(range(20))
    call.result(60)


def test_bytes_are_bounded_as_well_but_a_large_item_is_let_in(pool: Pool, tmp_path) -> None:
    items, made = DataQueue(), tmp_path / "made"
    block = np.zeros(MOST_BYTES // 4 - 1000, dtype=np.uint8)
    call = pool.submit(produce, items, [block] * 6, made)
    wait_until(lambda: count_of(made) == 4, what="a full queue")

    assert items.qsize() == 4
    assert [value.nbytes for value in get_all(items, 6)] == [block.nbytes] * 6
    call.result(60)
    items.put(np.zeros(MOST_BYTES + 1, dtype=np.uint8), timeout=0)
    assert items.get(timeout=0).nbytes == MOST_BYTES + 1


def test_the_latest_policy_keeps_the_newest_and_never_waits(pool: Pool) -> None:
    items = DataQueue("latest")

    pool.submit(produce, items, range(100)).result(60)

    assert items.qsize() == 1
    assert items.get(timeout=0) == 99


def test_time_outs_raise_what_the_standard_library_does(pool: Pool) -> None:
    items = DataQueue(maxsize=1)

    def try_both(items: DataQueue, timeout: float) -> tuple[str, str]:
        import queue

        try:
            items.get(timeout=timeout)
        except queue.Empty as error:
            empty = type(error).__name__
        items.put(1)
        try:
            items.put(2, timeout=timeout)
        except queue.Full as error:
            full = type(error).__name__
        assert items.qsize() == 1
        assert items.get() == 1
        return empty, full

    for timeout in (0, 0.05):
        assert try_both(items, timeout) == ("Empty", "Full")
        assert pool.submit(try_both, items, timeout).result(60) == ("Empty", "Full")
    assert items.empty()


def test_large_items_travel_in_shared_memory(pool: Pool) -> None:
    there, back = DataQueue(), DataQueue()
    array = np.arange(2**20)
    with count_bytes(pool) as moved:
        call = pool.submit_task(lambda a, b: b.put(a.get()), (there, back), rank=0)
        there.put(array)
        returned = back.get(timeout=60)
        call.result(60)

    assert np.array_equal(returned, array)
    assert moved[0].shared == 2 * array.nbytes


def test_an_item_is_packed_as_it_is_when_it_is_put() -> None:
    items, value = DataQueue(), [1]
    items.put(value)
    value.append(2)

    assert items.get(timeout=0) == [1]


def test_a_closed_queue_gives_what_is_left_and_refuses_more(pool: Pool) -> None:
    items = DataQueue()
    for value in range(3):
        items.put(value)

    items.close()
    items.close()

    with pytest.raises(QueueClosedError):
        items.put(3)
    with pytest.raises(QueueClosedError):
        pool.submit(produce, items, [3]).result(60)
    assert pool.submit(list, items).result(60) == [0, 1, 2]
    with pytest.raises(QueueClosedError):
        items.get()


def test_closing_wakes_those_who_wait(pool: Pool, tmp_path) -> None:
    full, empty, made = DataQueue(maxsize=1), DataQueue(), tmp_path / "made"
    putting = pool.submit(produce, full, range(2), made)
    getting = pool.submit(get_all, empty, 1)
    wait_until(lambda: count_of(made) == 1, what="a full queue")

    full.close()
    empty.close()

    for call in (putting, getting):
        with pytest.raises(QueueClosedError):
            call.result(60)


def test_a_callback_gets_every_item_also_those_of_before(pool: Pool) -> None:
    items, seen, threads = DataQueue(), [], set()
    is_complete = threading.Event()

    def note(value: int) -> None:
        seen.append(value)
        threads.add(threading.current_thread().name)
        if value == 49:
            is_complete.set()

    pool.submit(produce, items, range(10)).result(60)
    items.after_each(note)
    pool.submit(produce, items, range(10, 50)).result(60)

    assert is_complete.wait(10)
    assert seen == list(range(50))
    assert threads == {"mgpu-callbacks"}


def test_another_callback_takes_the_place_of_the_first() -> None:
    items, first, second = DataQueue(), queue.Queue(), queue.Queue()
    items.after_each(first.put)
    items.put(1)
    assert first.get(timeout=10) == 1

    items.after_each(second.put)
    items.put(2)
    assert second.get(timeout=10) == 2
    items.after_each(None)
    items.put(3)

    assert items.get(timeout=60) == 3
    assert first.empty()


def test_a_slow_callback_holds_the_producer_up(pool: Pool, tmp_path) -> None:
    items, made, go_on = DataQueue(maxsize=2), tmp_path / "made", threading.Event()
    items.after_each(lambda _: go_on.wait(60))

    call = pool.submit(produce, items, range(10), made)
    wait_until(lambda: count_of(made) == 3, what="a full queue")  # one is in the callback

    assert not call.done()
    go_on.set()
    call.result(60)


def test_a_task_that_waits_to_put_or_get_can_be_stopped(pool: Pool, tmp_path) -> None:
    full, empty, made = DataQueue(maxsize=1), DataQueue(), tmp_path / "made"
    calls = [
        pool.submit_task(produce, (full, range(5), made), rank=0),
        pool.submit_task(get_all, (empty, 1), rank=1),
    ]
    wait_until(lambda: count_of(made) == 1, what="a full queue")
    pids = [engine.pid for engine in pool.engines]

    for call in calls:
        call.cancel()

    after = [pool.submit_task(os.getpid, rank=rank) for rank in pool.ranks]
    assert [call.result(STOP_S) for call in after] == pids
    wait_until(lambda: not queues._requests, what="the end of the requests")
    assert get_all(full, 1) == [0]
    with pytest.raises(queue.Empty):
        full.get(timeout=0)
    empty.put("kept")
    assert empty.get(timeout=0) == "kept"


def test_a_stop_reaches_the_threads_of_a_task(pool: Pool, tmp_path) -> None:
    empty, begun = DataQueue(), tmp_path / "begun"

    def get_in_thread(items: DataQueue) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(items.get)
            begun.touch()
            call.result()

    call = pool.submit_task(get_in_thread, (empty,), rank=0)
    wait_until(begun.exists, 60, "the thread")
    pid = pool.engines[0].pid

    call.cancel()

    assert pool.submit_task(os.getpid, rank=0).result(60) == pid


def test_an_item_on_its_way_to_an_engine_that_dies_is_not_lost(duo: Pool, tmp_path) -> None:
    items, begun = DataQueue(), tmp_path / "begun"

    def get_deaf(items: DataQueue) -> None:
        from jupyter_mgpu.on_engine import context

        context.require().requests.answered = lambda *_: begun.touch()  # it never arrives
        items.get()

    call = duo.submit_task(get_deaf, (items,), rank=0)
    items.put("first")
    items.put("second")
    wait_until(begun.exists, 60, "the item")
    assert items.qsize() == 1

    os.kill(duo.engines[0].pid, signal.SIGKILL)

    with pytest.raises(Exception, match="SIGKILL"):
        call.result(60)
    assert get_all(items, 2) == ["first", "second"]


def test_the_end_of_the_pool_ends_every_wait_and_loses_nothing(duo: Pool) -> None:
    filled, empty = DataQueue(), DataQueue()
    duo.submit(produce, filled, [1, 2]).result(60)
    duo.submit(DataQueue.qsize, empty).result(60)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            empty.get()
        except PoolClosedError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    duo.shutdown()
    waiting.join(60)

    assert len(errors) == 1
    assert get_all(filled, 2) == [1, 2]
    with pytest.raises(PoolClosedError, match="has ended"):
        filled.get()


def test_a_queue_serves_the_next_pool(duo: Pool, pool: Pool) -> None:
    items = DataQueue()
    duo.submit(produce, items, [1]).result(60)
    duo.shutdown()

    pool.submit(produce, items, [2]).result(60)

    assert get_all(items, 2) == [1, 2]


def test_the_kernel_keeps_nothing_of_forgotten_queues(pool: Pool) -> None:
    before = set(queues._channels)
    for _ in range(20):
        items = DataQueue()
        pool.submit(produce, items, [1]).result(60)
        items.get(timeout=0)
    del items

    def kept() -> set[str]:
        gc.collect()
        probe = DataQueue()  # a new one drops those that are forgotten
        return set(queues._channels) - before - {probe._options.key}

    wait_until(lambda: not kept(), 60, "the end of the forgotten queues")


def test_bad_options_and_items_are_refused() -> None:
    for policy, maxsize in (("some", None), ("all", 0), ("all", 2.5), ("latest", 4)):
        with pytest.raises(ValueError, match="was given"):
            DataQueue(policy, maxsize)  # type: ignore[arg-type]
    items = DataQueue()
    with pytest.raises(PackingError, match=r"item\[1\].*lock"):
        items.put([1, threading.Lock()])
    with pytest.raises(ValueError, match="time-out"):
        items.get(timeout=-1)
    with pytest.raises(TypeError, match="True was given as time-out"):
        items.get(True)
    with pytest.raises(TypeError, match="A int was given where a function"):
        items.after_each(3)
    assert items.empty()


def test_a_cell_of_all_ranks_reports_while_it_runs_and_can_be_stopped(
    nb: Notebook, tmp_path
) -> None:
    nb.check(f"""
import pathlib
progress, never = mgpu.DataQueue(), mgpu.DataQueue()
progress.after_each(lambda rank: pathlib.Path({str(tmp_path)!r}, str(rank)).touch())
""")
    cell = nb.submit("%%spmd\nprogress.put(rank)\nnever.get()")
    wait_until(lambda: {path.name for path in tmp_path.iterdir()} == {"0", "1"}, 30, "the ranks")

    nb.stop()

    assert nb.wait(cell).ename == "KeyboardInterrupt"
    nb.check("%%spmd\nassert progress.empty()")


def test_what_a_callback_prints_and_raises_stands_in_its_cell(nb: Notebook, tmp_path: Path) -> None:
    told = tmp_path / "told"
    cell = nb.submit(f"""
import pathlib, time
numbers = mgpu.DataQueue()
def show(number):
    print("shown", 10 // number)
numbers.after_each(show)
mgpu.parfeval(lambda: [numbers.put(n) for n in (5, 0, 2)]).result()
while not pathlib.Path({str(told)!r}).exists():
    time.sleep(0.01)
""")
    nb.wait_for_output(cell, "shown 5")
    told.touch()
    nb.wait(cell)

    assert cell.stdout.split() == ["shown", "2", "shown", "5"]
    assert "The callback 'show' of a DataQueue failed" in cell.text
    assert "ZeroDivisionError" in cell.text


def test_a_stop_ends_a_wait_of_the_notebook(nb: Notebook) -> None:
    nb.check("empty = mgpu.DataQueue()")
    cell = nb.submit("print('waits', flush=True)\nempty.get()")
    nb.wait_for_output(cell, "waits")

    nb.stop()

    assert nb.wait(cell, 10).ename == "KeyboardInterrupt"
    nb.check("empty.put(1)\nassert empty.get(timeout=0) == 1")
