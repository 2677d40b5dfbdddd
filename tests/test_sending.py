"""Sending names to real child processes, each with a namespace of its own."""

import linecache
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from jupyter_mgpu.errors import SendingError
from jupyter_mgpu.on_engine.namespace import names
from jupyter_mgpu.output.table import format_bytes
from jupyter_mgpu.packing import unpack
from jupyter_mgpu.sending import Sender, sender
from jupyter_mgpu.sending.notes import format_ranks

CHILD = """
import os, pickle, sys
inbox, outbox = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
from jupyter_mgpu.on_engine.namespace import EngineNamespace
from jupyter_mgpu.packing import pack

def reset(rank):
    global names, space
    names = {"__name__": "__main__", "rank": rank, "device": "cpu:0", "world_size": 2}
    space = EngineNamespace(names)

def cell(source):
    space.before_cell()
    failed = ""
    try:
        exec(source, names)
    except Exception as error:
        failed = repr(error)
    return space.after_cell(source, failed=bool(failed)), failed

def receive(frames):
    return space.receive(frames)

def skip(source):
    return space.after_cell(source)

def changed(wanted):
    return space.changed(wanted)

def value(expression):
    return pack(eval(expression, names), copy=True)

while True:
    try:
        operation, argument = pickle.load(inbox)
    except EOFError:
        break
    try:
        reply = "ok", globals()[operation](argument)
    except Exception as error:
        reply = "error", repr(error)
    pickle.dump(reply, outbox)
    outbox.flush()
"""


class Engine:
    """A child process with an `EngineNamespace`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, operation: str, argument: Any) -> Any:
        """Call an operation of the child; raises a RuntimeError with its error's repr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((operation, argument), self._process.stdin)
        self._process.stdin.flush()
        status, value = pickle.load(self._process.stdout)
        if status == "error":
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=20)


class Session:
    """A kernel and two engines, and what happens between them for each cell."""

    def __init__(self, engines: dict[int, Engine]) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.sender = Sender(self.names)
        self.engines = engines
        for rank, engine in engines.items():
            engine.ask("reset", rank)
        self.asked: list[Sequence[str]] = []
        self.num_bytes = 0
        self._count = 0

    def run(self, source: str) -> None:
        """Run a cell in the kernel."""
        self._count += 1
        filename = f"/tmp/ipykernel_{os.getpid()}/{id(self)}_{self._count}.py"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        failed = True
        try:
            exec(compile(source, filename, "exec"), self.names)
            failed = False
        finally:
            self.sender.cell_finished(source, failed=failed)

    def spmd(self, source: str, ranks: Sequence[int] = (0, 1), **options: Any) -> tuple[str, ...]:
        """Run a cell on engines; returns the dim lines."""
        self._count += 1
        plan = self.sender.plan(
            source, ranks, ask_changed=self._ask_changed, count=self._count, **options
        )
        self.num_bytes = sum(memoryview(f).nbytes for fs in plan.frames.values() for f in fs)
        failures = []
        for rank, frames in plan.frames.items():
            engine = self.engines[rank]
            if frames:
                missing = engine.ask("receive", [bytes(frame) for frame in frames])
                if missing:
                    again = plan.repack(rank, missing)
                    assert engine.ask("receive", [bytes(frame) for frame in again]) == []
            report, failed = engine.ask("cell", source)
            plan.ran(rank, report)
            failures.append(failed)
        self.sender.cell_finished(f"get_ipython().run_cell_magic('spmd', '', {source!r})")
        if any(failures):
            raise AssertionError(failures)
        return plan.lines

    def value(self, expression: str, rank: int = 0) -> Any:
        """Evaluate an expression on an engine."""
        return unpack(self.engines[rank].ask("value", expression))

    def replace(self, rank: int) -> None:
        """Let a rank have an empty engine, as after its death."""
        self.engines[rank].ask("reset", rank)
        self.sender.forget_rank(rank)

    def _ask_changed(
        self, ranks: Sequence[int], names: Sequence[str]
    ) -> dict[int, Collection[str]]:
        self.asked.append(names)
        return {rank: self.engines[rank].ask("changed", list(names)) for rank in ranks}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[int, Engine]]:
    started = {0: Engine(), 1: Engine()}
    yield started
    for engine in started.values():
        engine.close()


@pytest.fixture
def session(engines: dict[int, Engine]) -> Session:
    return Session(engines)


def test_a_name_that_a_cell_reads_is_sent_and_told(session: Session) -> None:
    session.run("import numpy as np\nx = np.zeros(3)\ny = 5")

    lines = session.spmd("a = x + y")

    assert session.value("a", 1).tolist() == [5, 5, 5]
    assert lines == ("sent x (24 B), y to ranks 0-1",)


def test_what_is_unchanged_is_not_sent_again(session: Session) -> None:
    session.run("import numpy as np\nx = np.zeros(3)\ndef f(): return x")
    session.spmd("a = f()")

    assert session.spmd("a = f()") == ()
    assert session.num_bytes == 0


def test_an_array_changed_in_the_kernel_is_seen_by_the_next_cell(session: Session) -> None:
    session.run("import numpy as np\nx = np.zeros(3)")
    session.spmd("first = x.copy(); view = x[:2]")

    session.run("x[0] = 5")
    session.spmd("second = x.copy()")

    assert session.value("first").tolist() == [0, 0, 0]
    assert session.value("second").tolist() == [5, 0, 0]
    assert session.value("view").tolist() == [5, 0]  # in place, so that views see it


def test_a_list_changed_in_the_kernel_is_sent_again(session: Session) -> None:
    session.run("xs = [1]")
    session.spmd("a = list(xs)")

    session.run("xs.append(2)")
    session.spmd("a = list(xs)")

    assert session.value("a") == [1, 2]


def test_a_name_the_engines_bound_last_is_theirs(session: Session) -> None:
    session.run("x = 1")
    session.spmd("x = x + 10")
    session.spmd("a = x")
    assert session.value("a") == 11

    session.run("x = 1")  # the same value, but bound by the kernel, last
    session.spmd("a = x")

    assert session.value("a") == 1


def test_a_list_the_engines_rebound_is_not_overwritten_by_a_change_in_the_kernel(
    session: Session,
) -> None:
    session.run("xs = [1]")
    session.spmd("xs = xs + [rank]")

    session.run("xs.append(99)")
    session.spmd("a = xs")

    assert session.value("a", 1) == [1, 1]


def test_a_name_changed_inside_on_both_sides_is_refused_until_the_user_decides(
    session: Session,
) -> None:
    session.run("xs = [1]")
    session.spmd("xs.append('engine')")
    session.run("xs.append('kernel')")

    with pytest.raises(SendingError, match=r"xs was changed.*ranks 0-1.*--send xs.*--keep xs"):
        session.spmd("a = list(xs)")

    session.spmd("a = list(xs)", keep=["xs"])
    assert session.value("a") == [1, "engine"]
    session.spmd("a = list(xs)", send=["xs"])
    assert session.value("a") == [1, "kernel"]


def test_an_array_changed_on_the_engines_only_stays_so(session: Session) -> None:
    session.run("import numpy as np\nx = np.zeros(2)")
    session.spmd("x[0] = rank + 1")

    session.spmd("a = x.copy()")

    assert session.value("a", 1).tolist() == [2, 0]
    assert session.asked == []


def test_sending_by_force_overwrites_what_the_engines_changed(session: Session) -> None:
    session.run("import numpy as np\nx = np.zeros(2)")
    session.spmd("x[0] = 9")

    session.spmd("a = x.copy()", send=["x"])

    assert session.value("a").tolist() == [0, 0]


NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.tied = torch.nn.Linear(4, 4)
        self.tied.weight = self.fc.weight
        self.norm = torch.nn.BatchNorm1d(4)
    def forward(self, x):
        return self.norm(self.tied(self.fc(x)))
net = Net()
opt = torch.optim.Adam(net.parameters())
"""


def test_an_optimizer_first_used_later_steps_the_network_sent_before(session: Session) -> None:
    pytest.importorskip("torch")
    session.run(NET)
    session.spmd("out = net(torch.ones(2, 4)).sum()")

    session.spmd(
        "before = net.fc.weight.detach().clone()\n"
        "net(torch.rand(8, 4)).pow(2).sum().backward(); opt.step()\n"
        "moved = bool((net.fc.weight != before).any())\n"
        "same = opt.param_groups[0]['params'][0] is net.fc.weight\n"
        "tied = net.tied.weight is net.fc.weight"
    )
    session.spmd("step = opt.state[net.fc.weight]['step'].item()")

    assert session.value("(moved, same, tied, step)") == (True, True, True, 1.0)


def test_a_buffer_changed_in_the_kernel_updates_the_engines_module(session: Session) -> None:
    pytest.importorskip("torch")
    session.run(NET)
    session.spmd("weight = net.fc.weight; mean = net.norm.running_mean")

    session.run("_ = net(torch.ones(2, 4))")  # updates running statistics in place
    session.spmd("same = net.fc.weight is weight and net.norm.running_mean is mean; m = mean.sum()")

    assert session.value("same")
    assert session.value("m").item() == pytest.approx(
        session.names["net"].norm.running_mean.sum().item()
    )


def test_a_network_trained_there_and_switched_here_is_refused_by_name(session: Session) -> None:
    pytest.importorskip("torch")
    session.run(NET)
    session.spmd("net(torch.rand(8, 4)).pow(2).sum().backward(); opt.step()")

    session.run("net.eval()")

    with pytest.raises(SendingError, match="net was changed"):
        session.spmd("a = net.training")
    session.spmd("a = net.training", keep=["net"])
    assert session.value("a")


def test_an_optimizer_of_a_network_changed_on_both_sides_is_refused(session: Session) -> None:
    pytest.importorskip("torch")
    session.run(NET)
    session.spmd("with torch.no_grad(): net.fc.weight.add_(1)")
    session.run("with torch.no_grad(): net.fc.weight.mul_(2)")

    with pytest.raises(SendingError, match="net was changed"):
        session.spmd("opt.zero_grad()")

    session.spmd("opt.zero_grad()", keep=["net"])

    assert session.value("opt.param_groups[0]['params'][0] is net.fc.weight")


def test_what_an_engine_dropped_is_sent_by_value(session: Session) -> None:
    session.run("import numpy as np\nx = np.ones(50_000)")
    session.spmd("a = x.sum()")
    session.spmd("del x")

    session.spmd("b = x.sum()")

    assert session.value("b") == 50_000


def test_an_array_sent_under_another_name_goes_by_reference(session: Session) -> None:
    session.run("import numpy as np\nx = np.ones(50_000)\ny = {'x': x}")
    session.spmd("a = x.sum()")

    session.spmd("same = y['x'] is x")

    assert session.value("same")
    assert session.num_bytes < 4000


def test_an_alias_whose_first_name_is_gone_from_the_engine_is_sent_again(session: Session) -> None:
    session.run("import numpy as np\nx = np.ones(50_000)\ny = {'x': x}")
    session.spmd("a = x.sum(); x = None")

    session.spmd("b = y['x'].sum()")

    assert session.value("b") == 50_000


def test_views_of_what_was_sent_before_share_its_memory_there(session: Session) -> None:
    pytest.importorskip("torch")
    session.run(
        "import numpy as np, torch\n"
        "t = torch.arange(10.0)\nview = t[2:6]\n"
        "a = np.arange(10.0)\npart = a[::-2]\n"
        "net = torch.nn.Linear(2, 2)\nstate = net.state_dict()\n"
        "big = torch.arange(100_000.0)\nmiddle = big[500:600]\ninner = middle[10:20]\n"
    )
    session.spmd("t[2] = -1; a[9] = -9; net; middle")

    session.spmd(
        "seen = view[0].item(), part[0].item(), part.tolist()[1:]\n"
        "state['weight'].fill_(7); inner.fill_(-5)\n"
        "shared = net.weight[0, 0].item(), middle[10].item(), middle[9].item()"
    )

    assert session.value("seen") == (-1, -9, [7, 5, 3, 1])
    assert session.value("shared") == (7, -5, 509)


def test_a_view_sent_with_its_array_shares_its_memory(session: Session) -> None:
    session.run("import numpy as np\na = np.zeros(4)\nb = a[1:3]")

    session.spmd("a[1] = 5; seen = b.tolist()")

    assert session.value("seen") == [5, 0]


def test_globals_of_functions_and_methods_are_sent_transitively(session: Session) -> None:
    session.run(
        "import functools\n"
        "k = 1\n"
        "def g(): return k\n"
        "class C:\n"
        "    def call(self): return g()\n"
        "def twice(fn):\n"
        "    def wrapped(): return 2 * fn()\n"
        "    return wrapped\n"
        "@twice\n"
        "def f(): return C().call()\n"
        "p = functools.partial(f)\n"
    )

    session.spmd("a = p()")
    session.run("k = 10")
    session.spmd("b = p()")

    assert session.value("(a, b)") == (2, 20)


def test_a_function_sees_what_the_engine_redefines(session: Session) -> None:
    session.run("k = 1\ndef f(): return k, rank")
    session.spmd("a = f()")

    session.spmd("k = 5")
    session.spmd("b = f()")

    assert session.value("(a, b)", 1) == ((1, 1), (5, 1))


def test_a_global_of_a_function_defined_on_the_engines_is_sent_anew(session: Session) -> None:
    session.run("k = 1")
    session.spmd("def f(): return k\na = f()")

    session.run("k = 2")
    session.spmd("b = f()")

    assert session.value("(a, b)") == (1, 2)


def test_the_newest_version_of_a_function_and_class_is_sent(session: Session) -> None:
    session.run("def f(): return 1\nclass A:\n    v = 1")
    session.spmd("a = f(), A.v")

    session.run("def f(): return 2\nclass A:\n    v = 2")
    session.spmd("b = f(), A.v")

    assert session.value("(a, b)") == ((1, 1), (2, 2))


def test_instances_come_back_as_the_kernels_own_class(session: Session) -> None:
    session.run("class A:\n    def __init__(self, v): self.v = v")

    session.spmd("a = A(3)")

    assert type(session.value("a")) is session.names["A"]


def test_engine_names_are_never_sent_and_one_line_says_so(session: Session) -> None:
    session.run("device = 'cuda:7'\ndef f(): return device")

    lines = session.spmd("a = f(), device, rank")

    assert session.value("a", 1) == ("cpu:0", "cpu:0", 1)
    assert "device: the engines have their own, the kernel's is not sent" in lines


def test_names_the_cell_binds_itself_are_not_sent(session: Session) -> None:
    session.run("import threading\nx = threading.Lock()\ni = threading.Lock()")

    lines = session.spmd("x = 1\nfor i in range(3): x += i\ndef f(x): return x")

    assert session.value("x") == 4
    assert lines == ()


def test_a_name_that_cannot_be_sent_is_named_before_anything_runs(session: Session) -> None:
    session.run("import threading\nheld = {'a': threading.Lock()}")

    with pytest.raises(SendingError, match=r"'held'.*held\['a'\]: cannot pickle"):
        session.spmd("done = True; held")

    assert "done" not in session.value("sorted(globals())")


def test_a_name_that_cannot_be_sent_is_left_out_where_the_engines_have_it(
    session: Session,
) -> None:
    session.spmd("held = 1")
    session.run("import threading\nheld = threading.Lock()")

    lines = session.spmd("a = held")

    assert session.value("a") == 1
    assert any("held cannot be sent" in line for line in lines)


def test_a_failed_cell_of_the_kernel_binds_only_what_it_bound(session: Session) -> None:
    session.run("x = [1]")
    session.spmd("x = ['engine']")

    with pytest.raises(ZeroDivisionError):
        session.run("y = 1 / 0\nx = [1]")
    session.spmd("a = x")

    assert session.value("a") == ["engine"]


def test_nothing_is_sent_when_nothing_shall_be(session: Session) -> None:
    session.run("x = 1")
    session.spmd("x = 2")
    session.run("x = 3")

    assert session.spmd("a = x", send_nothing=True) == ()
    assert session.value("a") == 2


def test_a_name_bound_from_the_engines_remains_theirs(session: Session) -> None:
    session.spmd("loss = 1.5")
    session.names["loss"] = [1.5, 1.5]
    session.sender.bound_from_engines(["loss"])

    session.spmd("a = loss")

    assert session.value("a") == 1.5


def test_a_replaced_rank_gets_the_kernels_names_again(session: Session) -> None:
    session.run("import numpy as np\nx = np.ones(3)")
    session.spmd("a = x.sum()")

    session.replace(1)
    lines = session.spmd("b = x.sum()")

    assert session.value("b", 1) == 3
    assert lines == ("sent x (24 B) to rank 1",)


def test_names_lost_with_an_engine_are_refused_with_the_cell_to_run_again(
    session: Session,
) -> None:
    session.spmd("w = rank + 1\nother = 2")
    session.replace(1)

    with pytest.raises(SendingError, match=r"w was .*rank 1.*cell \[1\] \(w = rank \+ 1\) again"):
        session.spmd("a = w")

    assert session.sender.lost_names(1) == {"w", "other"}
    session.spmd("a = w", ranks=[0])
    session.spmd("w = rank + 1")
    session.spmd("a = w")
    assert session.value("a", 1) == 2


def test_a_module_imported_on_the_engines_is_imported_again_on_a_new_one(
    session: Session,
) -> None:
    session.spmd("import textwrap as tw, os.path")
    session.replace(1)
    assert session.sender.lost_names(1) == set()

    session.spmd("a = tw.dedent(' x') + os.path.sep")

    assert session.value("a", 1) == "x/"


def test_a_lost_name_that_the_kernel_has_can_be_sent(session: Session) -> None:
    session.run("x = 1")
    session.spmd("x = 2")
    session.replace(1)

    with pytest.raises(SendingError, match="--send x"):
        session.spmd("a = x")
    session.spmd("a = x", send=["x"])

    assert session.value("a", 0) == session.value("a", 1) == 1


def test_a_cell_that_never_reached_a_rank_leaves_it_as_it_was(session: Session) -> None:
    session.run("x = 1")

    plan = session.sender.plan("x", [0, 1])
    session.engines[0].ask("receive", [bytes(frame) for frame in plan.frames[0]])
    plan.commit(0)  # rank 1 was interrupted before it started

    again = session.sender.plan("x", [0, 1])
    assert not again.frames[0]
    assert again.frames[1]


def test_names_that_an_engine_could_not_receive_do_not_count_as_sent(session: Session) -> None:
    session.run(
        "class Fussy:\n"
        "    ok = False\n"
        "    def __getstate__(self): return {'a': 1}\n"
        "    def __setstate__(self, state):\n"
        "        if not type(self).ok: raise ValueError('not here')\n"
        "f = Fussy()\n"
    )
    plan = session.sender.plan("f", [0])
    with pytest.raises(RuntimeError, match="not here"):
        session.engines[0].ask("receive", [bytes(frame) for frame in plan.frames[0]])

    plan.ran(0, session.engines[0].ask("skip", "f"))

    assert session.sender.plan("f", [0]).frames[0]


def test_ranks_with_equal_needs_share_their_frames(session: Session) -> None:
    session.run("import numpy as np\nx = np.ones(50_000)")

    plan = session.sender.plan("x", [0, 1])

    assert plan.frames[0] is plan.frames[1]


def test_a_data_frame_keeps_its_fingerprint(session: Session) -> None:
    pytest.importorskip("pandas")
    session.run("import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
    session.spmd("n = len(df)")

    assert session.spmd("n = len(df)") == ()
    session.run("df.loc[0, 'a'] = 100")
    session.spmd("n = int(df.a.sum())")

    assert session.value("n") == 102


def test_many_threads_may_call_the_sender(session: Session) -> None:
    session.run("x = list(range(100))")
    errors = []

    def work(rank: int) -> None:
        try:
            for _ in range(50):
                plan = session.sender.plan("x", [rank])
                plan.commit(rank)
                session.sender.forget_rank(rank)
        except Exception as error:  # noqa: BLE001 - handed to the test's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert errors == []


def test_the_kernels_objects_are_not_kept_alive(session: Session) -> None:
    import gc
    import weakref

    session.run("import numpy as np\nx = np.ones(1000)")
    session.spmd("a = x.sum()")
    reference = weakref.ref(session.names["x"])

    session.run("del x")
    session.spmd("a = 1")  # the plan before is no longer needed
    gc.collect()

    assert reference() is None


def test_a_plan_for_an_empty_cell_looks_at_no_name(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[Any] = []
    collect = sender.collect

    def note(names: Any, *args: Any, **options: Any) -> Any:
        looked_at.append(set(names))
        return collect(names, *args, **options)

    monkeypatch.setattr(sender, "collect", note)
    session.sender.plan("x", [0, 1])
    assert looked_at == [{"x"}]
    session.sender.plan("1 + 1", [0, 1])
    misses = names._analyse.cache_info().misses

    session.sender.plan("1 + 1", [0, 1])

    assert looked_at == [{"x"}]
    assert names._analyse.cache_info().misses == misses


def test_sizes_and_ranks_are_written_for_people() -> None:
    assert [format_bytes(n) for n in (24, 1200, 1_234_567, 52_000_000, 3 * 10**9)] == [
        "24 B",
        "1.2 kB",
        "1.2 MB",
        "52 MB",
        "3.0 GB",
    ]
    assert format_ranks([0]) == "rank 0"
    assert format_ranks([3, 2, 0]) == "ranks 0, 2-3"


def test_a_large_array_is_in_no_frame_twice(session: Session) -> None:
    session.run("import numpy as np\nx = np.ones(100_000)\ny = x\nz = [x, y]")

    plan = session.sender.plan("x, y, z", [0])

    assert sum(memoryview(frame).nbytes for frame in plan.frames[0]) < 1.1 * 800_000
    assert np.shares_memory(np.frombuffer(plan.frames[0][-1]), session.names["x"])
