"""A kernel takes over a kept pool: its tasks, its data, and the work that goes on."""

import contextlib
import os
import signal
import threading

import pytest
from kept_pools import ended_later, kernel, killed_kernel, record_of, traces_of

from jupyter_mgpu import control
from jupyter_mgpu.owner import journal
from notebooks import Notebook, is_alive, wait_for_file, wait_until

WAIT = """
import pathlib
def wait_for(path, result=None):
    path = pathlib.Path(path)
    path.with_suffix(".begun").touch()
    while not path.exists():
        time.sleep(0.02)
    return result
"""


def attach(nb: Notebook) -> None:
    nb.check("%parpool --attach night\npool = mgpu.current_pool()")


def test_names_on_the_engines_are_read_as_before() -> None:
    code = """
import numpy
weights = numpy.arange(1_000_000.0)
get_ipython().run_cell_magic("spmd", "", "total = weights.sum() + rank\\nown = weights")
get_ipython().run_cell_magic("spmd", "", "again = weights is own")
assert pool["again"][1]
"""
    with killed_kernel(code), kernel() as nb:
        attach(nb)
        assert nb.value("float(pool['total'][1] - pool['total'][0])") == 1.0
        cell = nb.check("%%spmd\nprint(total == weights.sum() + rank)")
        assert "[0] True" in cell.text
        assert "[1] True" in cell.text
        # What this kernel sends is not mixed up with what the one before has sent.
        nb.check("import numpy\nweights = numpy.ones(1_000_000)")
        cell = nb.check("%%spmd\nprint(weights.sum(), own.sum() > 1e9)")
        assert "[0] 1000000.0 True" in cell.text
        assert "sent" in cell.text
        cell = nb.check("%%spmd\nprint(weights.sum())")
        assert "sent" not in cell.text


def test_large_arguments_of_queued_tasks_outlive_the_kernel(tmp_path) -> None:
    go = tmp_path / "go"
    code = f"""{WAIT}
import numpy
first = [mgpu.parfeval(wait_for, {str(go)!r}) for _ in range(2)]
large = numpy.arange(13_000_000.0)  # 104 MB
def total(values, factor):
    return float(values.sum()) * factor, values[:3_000_000]
queued = [mgpu.parfeval(total, large, i, name=f"total-{{i}}") for i in range(3)]
pool.status()  # answered when all before has arrived
"""
    with killed_kernel(code), kernel() as nb:
        go.touch()
        attach(nb)
        sums = nb.value("[mgpu.tasks.load(f'total-{i}').result()[0] for i in range(3)]")
        once = 13_000_000.0 * 12_999_999.0 / 2
        assert sums == [0.0, once, 2 * once]
        # A result above what a journal holds waits in a file of its own.
        assert nb.value("len(mgpu.tasks.load('total-1').result()[1])") == 3_000_000


def test_what_a_kernel_has_sent_before_its_end_is_done() -> None:
    code = """
import numpy, signal
from jupyter_mgpu import control
os.kill(control.named('night').kernel_pid, signal.SIGSTOP)
pool.submit(len, numpy.ones(2_000_000))  # its block ends with this kernel
late = [mgpu.parfeval(abs, -i, name=f"late-{i}") for i in range(5)]
os.kill(os.getpid(), signal.SIGKILL)  # now, not when the cell has ended
"""
    with ended_later("night"):
        with kernel() as nb:
            nb.check("%parpool 2 --keep --name night\npool = mgpu.current_pool()")
            keeper = control.named("night").kernel_pid
            try:
                nb.submit(code)
                wait_until(lambda: not is_alive(nb.pid), 60, "the kernel's end")
            finally:
                os.kill(keeper, signal.SIGCONT)
        wait_until(lambda: record_of("night")["attached_pid"] is None, 60, "the detaching")
        with kernel() as nb:
            attach(nb)
            results = "[mgpu.tasks.load(f'late-{i}').result(60) for i in range(5)]"
            assert nb.value(results) == [0, 1, 2, 3, 4]


def test_a_task_has_left_the_kernel_when_it_is_submitted_however_busy_that_is() -> None:
    with ended_later("night"), kernel() as nb:
        nb.check("%parpool 1 --keep --name night\npool = mgpu.current_pool()")
        nb.check("""
from jupyter_mgpu.keeping import keeper_link
keeper_link.HAND_OVER_S = 0.01
go_on, submitting = threading.Event(), threading.Thread(target=pool.submit, args=(abs, -1))
pool.owner._link._call(go_on.wait)
submitting.start()
submitting.join(0.3)
assert submitting.is_alive()
go_on.set()
submitting.join()
""")


def test_tasks_of_a_kernel_that_detaches_at_once_come_back() -> None:
    with ended_later("night"), kernel() as nb:
        nb.check("%parpool 2 --keep --name night\npool = mgpu.current_pool()")
        nb.check("""
for _ in range(20):
    sent = {pool.submit(abs, -i).id for i in range(10)}
    pool.detach()  # while the keeper tells of the first ones
    pool = mgpu.parpool(attach="night")
    assert sent <= {task.id for task in [*pool.tasks(), *pool.ended_tasks()]}
""")


def test_a_large_result_that_nobody_took_is_on_disk(tmp_path) -> None:
    code = f"""{WAIT}
import numpy
task = mgpu.parfeval(wait_for, {str(tmp_path / "go")!r}, numpy.arange(4_000_000.0), name="large")
while not task.running():
    time.sleep(0.02)
"""
    with killed_kernel(code), kernel() as nb:
        (tmp_path / "go").touch()
        load = "mgpu.tasks.load('large')"
        wait_until(lambda: nb.run(load).ok, 60, "the record")
        assert nb.value(f"float({load}.result().sum())") == 4_000_000.0 * 3_999_999.0 / 2
        modes = [path.stat().st_mode & 0o777 for path in journal.folder().iterdir()]
        assert set(modes) == {0o600}
        assert "32 MB" in nb.check("!{sys.executable} -m jupyter_mgpu.cli tasks").stdout


def test_errors_come_back_with_their_types_and_traces() -> None:
    code = """
class OwnError(ValueError):
    pass
def fail(kind):
    raise kind("on purpose")
tasks = [mgpu.parfeval(fail, kind, name=kind.__name__) for kind in (KeyError, OwnError)]
tasks.append(mgpu.parfeval(os._exit, 3, name="exit"))
mgpu.wait(tasks)
"""
    with killed_kernel(code), kernel() as nb:
        cell = nb.check("%parpool --attach night\npool = mgpu.current_pool()")
        assert "a new engine runs, without earlier names" in cell.text
        cell = nb.run("mgpu.tasks.load('KeyError').result()")
        assert cell.ename == "KeyError"
        assert "on purpose" in cell.traceback
        cell = nb.run("mgpu.tasks.load('OwnError').result()")
        assert cell.ename == "OwnError"
        assert nb.value("isinstance(sys.last_value, ValueError)")
        assert "exited with code 3" in nb.run("mgpu.tasks.load('exit').result()").evalue
        errors = nb.value("{task.name: task.error for task in pool.ended_tasks()}")
        assert errors["KeyError"] == "KeyError: 'on purpose'"
        assert errors["OwnError"] == "OwnError: on purpose"


def test_a_future_that_is_taken_over_is_like_another(tmp_path) -> None:
    go, later = tmp_path / "go", tmp_path / "later"
    code = f"""{WAIT}
class Point:
    def __init__(self, x):
        self.x = x
def fail(path):
    wait_for(path)
    raise LookupError(path)
tasks = [mgpu.parfeval(wait_for, {str(go)!r}, Point(5), name="point"),
         mgpu.parfeval(fail, {str(go)!r}, name="fail"),
         mgpu.parfeval(wait_for, {str(later)!r}, name="later"),
         mgpu.parfeval(wait_for, {str(later)!r}, name="cancelled", priority=-1)]
while not (tasks[0].running() and tasks[1].running()):
    time.sleep(0.02)
"""
    with killed_kernel(code), kernel() as nb:
        attach(nb)
        nb.check("by_name = {task.name: task for task in pool.tasks()}")
        assert nb.value("{n: str(t.state) for n, t in by_name.items()}") == {
            "point": "running",
            "fail": "running",
            "later": "queued",
            "cancelled": "queued",
        }
        assert nb.value("[by_name[name].rank for name in ('point', 'later')]") == [0, None]
        assert nb.value("by_name['cancelled'].cancel()")
        go.touch()
        assert nb.value("by_name['point'].result().x") == 5
        assert nb.run("by_name['fail'].result()").ename == "LookupError"
        later.touch()
        nb.check("by_name['later'].result()")
        assert nb.value("[str(t.state) for t in pool.ended_tasks()][-1]") == "finished"
        # New tasks are named and numbered on from there.
        assert nb.value("pool.submit(abs, -3).result()") == 3


def test_a_second_kernel_is_refused_and_told_who_has_the_pool() -> None:
    with ended_later("night"), kernel() as first, kernel() as second:
        first.check("%parpool 1 --keep --name night")
        cell = second.run("%parpool --attach night")
        assert cell.ename == "UsageError"
        assert f"(process {first.pid})" in cell.evalue
        assert "one kernel at a time" in cell.evalue
        assert record_of("night")["attached_pid"] == first.pid

        first.check("task = mgpu.parfeval(time.sleep, 60, name='sleeps')")
        assert "sleeps" in second.check("%tasks").text
        cell = second.run("mgpu.tasks.load('sleeps')")
        assert "`%parpool --attach night`" in cell.evalue
        assert "goes on without this kernel" in first.check("%parpool detach").text
        assert "was detached" in first.run("task.result()").evalue
        attach(second)
        assert record_of("night")["attached_pid"] == second.pid
        assert second.value("[task.name for task in pool.tasks()]") == ["sleeps"]
        # Its own cell, run again, is no second pool of that name.
        second.check("%parpool 1 --keep --name night")
        assert len([pool for pool in control.find_pools() if pool.name == "night"]) == 1


def test_a_process_that_the_kernel_has_forked_does_not_keep_its_place(tmp_path) -> None:
    end = tmp_path / "end"
    code = f"""
if os.fork() == 0:
    while not os.path.exists({str(end)!r}):
        time.sleep(0.02)
    os._exit(0)
"""
    with contextlib.ExitStack() as undo:
        undo.callback(end.touch)
        undo.enter_context(killed_kernel(code, size=1))
        nb = undo.enter_context(kernel())
        wait_until(lambda: record_of("night")["attached_pid"] is None, 60, "the detaching")
        attach(nb)


def test_of_two_kernels_at_once_one_gets_the_pool() -> None:
    with killed_kernel("pass", size=1), kernel() as one, kernel() as other:
        cells = {}

        def try_it(nb: Notebook) -> None:
            cells[nb.pid] = nb.run("%parpool --attach night")

        threads = [threading.Thread(target=try_it, args=(nb,)) for nb in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [pid for pid, cell in cells.items() if cell.ok]
        (loser,) = [cell for cell in cells.values() if not cell.ok]
        assert f"(process {winner})" in loser.evalue


def test_a_stopped_kernel_keeps_its_place_and_a_restarted_one_gets_it_back() -> None:
    with ended_later("night"), kernel() as nb, kernel() as other:
        nb.check("%parpool 2 --keep --name night\npool = mgpu.current_pool()")
        nb.check("%%spmd\nx = rank + 5")
        os.kill(nb.pid, signal.SIGSTOP)
        try:
            cell = other.run("%parpool --attach night")
        finally:
            os.kill(nb.pid, signal.SIGCONT)
        assert "one kernel at a time" in cell.evalue
        engines = nb.value("[engine.pid for engine in pool.engines]")
        for _ in range(2):
            nb.manager.restart_kernel(now=False)
            nb.client.wait_for_ready(60)
            nb.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu")
            cell = nb.check("%parpool 2 --keep --name night\npool = mgpu.current_pool()")
            assert "Attached to the pool 'night'" in cell.text
            assert nb.value("[engine.pid for engine in pool.engines]") == engines
            assert nb.value("[pool['x'][0], pool['x'][1]]") == [5, 6]


def test_stop_ends_a_cell_in_an_attached_kernel() -> None:
    with killed_kernel("pass"), kernel() as nb:
        attach(nb)
        cell = nb.submit("%%spmd\nimport time\nprint('runs')\ntime.sleep(600)")
        nb.wait_for_output(cell, "runs")
        nb.stop()
        assert nb.wait(cell).ename == "KeyboardInterrupt"
        cell = nb.check("%%spmd\nprint('on', rank)")
        assert "on 1" in cell.text


def test_a_cell_runs_to_its_end_without_its_kernel(tmp_path) -> None:
    go = tmp_path / "go"
    with ended_later("night"):
        with kernel() as nb:
            nb.check("%parpool 2 --keep --name night")
            nb.check(WAIT)
            cell = nb.submit(f"%%spmd\nwait_for({str(go)!r})\nend = rank")
            wait_for_file(go.with_suffix(".begun"))
            assert not cell.reply
            nb.kill()
        with kernel() as nb:
            attach(nb)
            go.touch()
            assert nb.value("[pool['end'][0], pool['end'][1]]") == [0, 1]


@pytest.mark.parametrize(
    ("make", "use", "error", "words"),
    [
        ("mgpu.Constant([1, 2])", "lambda: len(shared.value)", "MgpuError", "This Constant was"),
        ("mgpu.DataQueue()", "lambda: shared.put(1)", "PoolClosedError", "kernel that has ended"),
        ("mgpu.DataQueue()", "lambda: shared.get()", "PoolClosedError", "kernel that has ended"),
    ],
)
def test_what_only_the_dead_kernel_had_is_told(
    tmp_path, make: str, use: str, error: str, words: str
) -> None:
    go = tmp_path / "go"
    # Else a record of the same name, of another turn of this test, is taken for this one's.
    names = [f"{name} {tmp_path.name}" for name in ("early", "late")]
    code = f"""{WAIT}
shared = {make}
use = {use}
first = mgpu.parfeval(wait_for, {str(go)!r}, name="first")
early, late = [
    mgpu.parfeval(lambda: (wait_for({str(go)!r}), use()), name=name) for name in {names}
]
while not (first.running() and early.running()):
    time.sleep(0.02)
"""
    with killed_kernel(code, size=2), kernel() as nb:
        wait_until(lambda: record_of("night")["attached_pid"] is None, 60, "the detaching")
        go.touch()
        wait_until(lambda: nb.run(f"mgpu.tasks.load({names[0]!r})").ok, 60, "the end of the task")
        attach(nb)
        for name in names:
            cell = nb.run(f"mgpu.tasks.load({name!r}).result(60)")
            assert cell.ename == error
            assert words in cell.evalue


LOOP = f"""{WAIT}
import numpy
def item(index, path):
    if index < 10:
        print("runs", index)
        return index
    return wait_for(path, numpy.full(2, index))
"""


def test_a_loop_in_the_background_runs_on_and_comes_back_by_its_name(tmp_path) -> None:
    go = tmp_path / "go"
    code = f"""{LOOP}
loop = mgpu.parfor(item, range(40), [{str(go)!r}] * 40, wait=False, name="loop", seed=0)
while len(loop.results) < 10:
    time.sleep(0.02)
assert mgpu.tasks.load("loop") is loop
"""
    with killed_kernel(code), kernel() as nb, kernel() as other:
        wait_until(lambda: record_of("night")["attached_pid"] is None, 60, "the detaching")
        assert "`%parpool --attach night`" in other.run("mgpu.tasks.load('loop')").evalue
        printed = "\n".join(f"runs {index}" for index in range(10))
        assert (
            f"'loop' running in the kept pool 'night'>\n{printed}"
            in other.check("%tasks loop").text
        )
        # It is one task to all who look, with the share of its items that have a result.
        (look,) = control.look_at([control.named("night")])
        told = [(task["name"], task["kind"], task["progress"]) for task in look.answer["tasks"]]
        assert (told, look.answer["ended"]) == ([("loop", "task", 0.25)], [])
        rows = """[
            (row["name"], row["state"], row["rank"], row["progress"])
            for row in mgpu.tasks.table() if row["name"].startswith("loop")
        ]"""
        assert other.value(rows) == [("loop", "running", None, 0.25)]
        attach(nb)
        assert nb.value(rows) == [("loop", "running", None, 0.25)]
        nb.check("loop = mgpu.tasks.load('loop')")
        assert len(nb.value(rows)) == 1
        assert nb.value("str(loop.state)") in ("queued", "running")
        assert nb.value("sorted(loop.results)") == list(range(10))
        go.touch()
        assert nb.value("loop.result(60)[:10]") == list(range(10))
        assert nb.value("[v.tolist() for v in loop.result()[10:]]") == [
            [i, i] for i in range(10, 40)
        ]
        assert "runs 9" in nb.check("%tasks loop").text
        nb.check("%parpool detach")
        assert ("loop", "finished", None, 1.0) in other.value(rows)
        assert not [row for row in other.value(rows) if "[" in row[0]]
        # All of it waits on disk as well.
        sums = other.value(
            "[v if type(v) is int else int(v.sum()) for v in mgpu.tasks.load('loop').result()]"
        )
        assert sums == [*range(10), *range(20, 80, 2)]


def test_a_loop_of_a_kept_pool_gives_what_another_gives() -> None:
    code = """
import random
items = [[i] for i in range(100)]
shared = [items[0]] * 4
def grow(values):
    values.append(random.random())
    return values
def fail(i):
    if i == 3:
        raise LookupError("on purpose")
    return i
def die(i):
    return os._exit(3) if i == 1 else i
"""
    with ended_later("night"), kernel() as nb:
        nb.check(f"%parpool 2 --keep --name night\n{code}")
        for arguments in ("grow, items, seed=5", "grow, shared, seed=5, chunk=4", "fail, []"):
            there = nb.value(f"mgpu.parfor({arguments}, wait=False).result(60)")
            assert there == nb.value(f"mgpu.parfor({arguments})")
        cell = nb.run("mgpu.parfor(fail, range(20), wait=False).result(60)")
        assert cell.ename == "LookupError"
        assert "in item 3 of the loop: 3" in cell.traceback
        nb.check("loop = mgpu.parfor(fail, range(5), on_error='collect', wait=False)")
        assert nb.value("[str(value) for value in loop.result(60)]") == [*"012", "on purpose", "4"]
        nb.check("loop = mgpu.parfor(time.sleep, [0, *[60] * 20], wait=False)")
        wait_until(lambda: nb.value("loop.results"), 60, "a result")
        assert nb.value("loop.cancel()")
        assert nb.run("loop.result()").ename == "CancelledError"
        assert nb.value("(loop.results, len(mgpu.current_pool().tasks()))") == ({0: None}, 0)
        cell = nb.check("mgpu.parfor(abs, (i for i in range(3)), wait=False).result()")
        assert "This loop ends with its kernel" in cell.text
        nb.check("loop = mgpu.parfor(die, range(3), on_error='collect', wait=False)")
        cell = nb.check("print([type(value).__name__ for value in loop.result(60)])")
        assert "['int', 'EngineDiedError', 'int']" in cell.stdout  # beside what is told of it


def test_a_loop_ends_with_its_kernel_and_the_engines_are_free() -> None:
    with ended_later("night"):
        with kernel() as nb:
            nb.check("%parpool 2 --keep --name night")
            cell = nb.submit("mgpu.parfor(lambda i: time.sleep(60), range(8))")
            wait_until(
                lambda: any(
                    look.answer and look.state == "busy"
                    for look in control.look_at([control.named("night")])
                ),
                60,
                "the loop",
            )
            assert not cell.reply
            engines = [engine.pid for engine in control.named("night").engines]
            nb.kill()
        with kernel() as nb:
            cell = nb.check("%parpool --attach night\npool = mgpu.current_pool()")
            assert "has ended with its kernel, which had its results" in cell.text
            assert nb.value("pool.submit(abs, -1).result(60)") == 1
            assert nb.value("[engine.pid for engine in pool.engines]") == engines


def test_an_idle_kept_pool_ends() -> None:
    with ended_later("night"):
        with kernel() as nb:
            nb.check("%parpool 2 --keep --name night\npool = mgpu.current_pool()")
            traces = traces_of("night")
            nb.check("pool.owner.set_idle_timeout(1.0).result()")
            nb.kill()
        traces.wait_until_gone()
        assert not [pool for pool in control.find_pools() if pool.name == "night"]


def test_the_engines_follow_the_kernel_that_is_attached(tmp_path) -> None:
    with killed_kernel("os.environ['MARK'] = 'old'\npool.submit(abs, 1).result()"), kernel() as nb:
        attach(nb)
        nb.check(f"os.environ['MARK'] = 'new'\nos.chdir({str(tmp_path)!r})")
        found = nb.value("pool.submit(lambda: (os.environ['MARK'], os.getcwd())).result()")
        assert found == ("new", str(tmp_path))


def test_ipyparallels_own_client_works() -> None:
    with killed_kernel("pass"), kernel() as nb:
        attach(nb)
        assert nb.value("sorted(pool.client.ids)") == [0, 1]
        assert nb.value("pool.client[:].apply_sync(abs, -2)") == [2, 2]
