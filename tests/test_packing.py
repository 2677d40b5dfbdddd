"""Packing across two real processes: this one, with a notebook's namespace, and a child."""

import functools
import http.client
import inspect
import io
import linecache
import os
import pickle
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jupyter_mgpu.errors import PackingError
from jupyter_mgpu.packing import count_bytes, pack, pack_exception, unpack
from jupyter_mgpu.packing.contents import content
from jupyter_mgpu.packing.tensors import rebuild_storage

CHILD = """
import os, pickle, sys
inbox, outbox = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
from jupyter_mgpu.packing import pack, pack_exception, unpack
from jupyter_mgpu.packing.functions import set_engine_globals
set_engine_globals({"rank": 3, "device": "cpu:3"})
while True:
    try:
        frames = pickle.load(inbox)
    except EOFError:
        break
    try:
        function, args = unpack(frames)
        del frames
        reply = "ok", pack(function(*args), copy=True), ""
    except BaseException as error:
        import traceback
        reply = "error", pack_exception(error), traceback.format_exc()
    pickle.dump(reply, outbox)
    outbox.flush()
"""


class Child:
    """Another Python process that calls functions."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.last_traceback = ""

    def call(self, function: Any, *args: Any) -> Any:
        """Call a function there; raises what it raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump([bytes(frame) for frame in pack((function, args))], self._process.stdin)
        self._process.stdin.flush()
        status, frames, self.last_traceback = pickle.load(self._process.stdout)
        if frames is None:
            raise AssertionError(f"the exception could not travel: {self.last_traceback}")
        value = unpack(frames)
        if status == "error":
            raise value
        return value

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


class Notebook:
    """Runs cells in a namespace of its own, as a kernel does."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._count = 0

    def run(self, source: str) -> None:
        """Run a cell."""
        self._count += 1
        filename = f"/tmp/ipykernel_{id(self)}/{self._count}.py"
        lines = source.splitlines(keepends=True)
        linecache.cache[filename] = (len(source), None, lines, filename)
        exec(compile(source, filename, "exec"), self.names)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    process = Child()
    yield process
    process.close()


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


def test_a_function_finds_the_modules_it_uses(child: Child, notebook: Notebook) -> None:
    notebook.run("import numpy as np\ndef f(): return np.ones(2)")

    assert child.call(notebook["f"]).tolist() == [1, 1]


def test_a_submodule_that_only_a_function_reaches_is_imported(
    child: Child, notebook: Notebook
) -> None:
    notebook.run("import xml.etree.ElementTree\ndef f(): return xml.etree.ElementTree.__name__")

    assert child.call(notebook["f"]) == "xml.etree.ElementTree"


def test_a_recursive_function_and_functions_of_other_cells_work(
    child: Child, notebook: Notebook
) -> None:
    notebook.run("def fact(n): return n * fact(n - 1) if n else 1")
    notebook.run("def double(n): return 2 * fact(n)")

    assert child.call(notebook["double"], 5) == 240


def test_the_newest_version_of_a_function_is_sent(child: Child, notebook: Notebook) -> None:
    notebook.run("def g(): return 1\ndef f(): return g()")
    assert child.call(notebook["f"]) == 1

    notebook.run("def g(): return 2")

    assert child.call(notebook["f"]) == 2


def test_rank_and_device_are_the_engines_own(child: Child, notebook: Notebook) -> None:
    notebook.run("device = 'cuda:7'\ndef f(): return g(), rank\ndef g(): return device")

    assert child.call(notebook["f"]) == ("cpu:3", 3)


def test_the_shells_own_names_do_not_hinder_a_function(child: Child, notebook: Notebook) -> None:
    notebook.names["get_ipython"] = threading.Lock().acquire
    notebook.run("def f(): return 'get_ipython' in globals() or get_ipython")

    with pytest.raises(NameError):
        child.call(notebook["f"])


def test_closures_defaults_and_partials_travel(child: Child, notebook: Notebook) -> None:
    notebook.run(
        "def make(a):\n"
        "    b = 10\n"
        "    def inner(x, c=100, *, d=1000): return a + b + c + d + x\n"
        "    return inner\n"
        "f = make(1)\n"
    )

    assert child.call(notebook["f"], 1) == 1112
    assert child.call(functools.partial(notebook["f"], c=0), 1) == 1012


def test_super_works_in_a_class_of_the_notebook(child: Child, notebook: Notebook) -> None:
    notebook.run(
        "class A:\n"
        "    def __init__(self): self.log = ['A']\n"
        "class B(A):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.log.append('B')\n"
        "    def get(self): return self.log\n"
        "def f(cls): return cls().get()\n"
    )

    assert child.call(notebook["f"], notebook["B"]) == ["A", "B"]


def test_results_are_of_the_very_class_of_the_notebook(child: Child, notebook: Notebook) -> None:
    notebook.run(
        "import dataclasses, enum\n"
        "@dataclasses.dataclass\n"
        "class Point:\n"
        "    x: int = 0\n"
        "    def moved(self): return Point(self.x + step)\n"
        "step = 1\n"
        "class Colour(enum.Enum):\n"
        "    RED = 1\n"
        "def f(p): return p.moved(), Colour.RED, Point\n"
    )
    method = notebook["Point"].moved

    point, colour, cls = child.call(notebook["f"], notebook["Point"](2))

    assert type(point) is notebook["Point"]
    assert point == notebook["Point"](3)
    assert colour is notebook["Colour"].RED
    assert cls is notebook["Point"]
    assert notebook["Point"].moved is method  # the copy that came back changed nothing here


def test_a_redefined_class_is_another_one_and_the_old_one_still_comes_back(
    child: Child, notebook: Notebook
) -> None:
    notebook.run("class A:\n    def v(self): return 1\ndef f(a): return a")
    old_class, old = notebook["A"], notebook["A"]()
    child.call(notebook["f"], old)

    notebook.run("class A:\n    def v(self): return 2")

    assert child.call(notebook["f"], notebook["A"]()).v() == 2
    assert type(child.call(notebook["f"], old)) is old_class


def test_a_method_replaced_on_a_class_is_replaced_on_the_other_side(
    child: Child, notebook: Notebook
) -> None:
    notebook.run("class A:\n    def v(self): return 1\ndef f(a): return a.v()")
    assert child.call(notebook["f"], notebook["A"]()) == 1

    notebook.run("A.v = lambda self: 2")

    assert child.call(notebook["f"], notebook["A"]()) == 2


def test_tracebacks_and_inspect_show_the_source_of_a_cell(child: Child, notebook: Notebook) -> None:
    notebook.run("import inspect\ndef bad():\n    return 1 / 0  # the line\n")
    notebook.run("def source(): return inspect.getsource(bad)")

    with pytest.raises(ZeroDivisionError):
        child.call(notebook["bad"])

    assert "return 1 / 0  # the line" in child.last_traceback
    assert child.call(notebook["source"]) == inspect.getsource(notebook["bad"])


def test_large_buffers_travel_apart_and_small_ones_do_not() -> None:
    small, large = np.zeros(10), np.arange(100_000.0)

    frames = pack({"small": small, "large": large})

    assert len(frames) == 2
    assert memoryview(frames[1]).nbytes == large.nbytes
    assert np.shares_memory(np.frombuffer(frames[1]), large)


def test_arrays_can_be_written_after_unpacking() -> None:
    frames = [bytes(frame) for frame in pack([np.zeros(3), np.zeros(10_000)])]

    for array in unpack(frames):
        array[0] = 5
        assert array[0] == 5


def test_a_frame_that_can_be_written_is_used_in_place() -> None:
    stream, buffer = pack(np.zeros(10_000))
    mine = bytearray(buffer)

    array = unpack([stream, memoryview(mine)])

    assert np.shares_memory(array, np.frombuffer(mine))


def test_a_copy_is_not_changed_by_what_happens_to_the_object_later() -> None:
    frame = np.zeros(100_000)
    frames = pack((frame,), copy=True)

    frame[:] = 7

    assert unpack(frames)[0].sum() == 0


class Fussy:
    """Pickles, but cannot be rebuilt."""

    def __setstate__(self, state: object) -> None:
        raise RuntimeError("no such state")

    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda lock: {"a": [1, {"b": lock}]}, r"^\['a'\]\[1\]\['b'\]: cannot pickle"),
        (lambda lock: functools.partial(print, lock), r"^args\[0\]: "),
        (lambda lock: lambda: lock, "^closure variable lock: |, closure variable lock: "),
        (lambda lock: ValueError("x", lock), r"args\[1\]: "),
        (lambda lock: type("Held", (), {})() if not lock else _holder(lock), r"^lock: "),
    ],
)
def test_what_cannot_be_pickled_is_named_by_its_path(build: Any, path: str) -> None:
    with pytest.raises(PackingError, match=path) as caught:
        pack(build(threading.Lock()))

    assert "lock" in str(caught.value)


def _holder(lock: Any) -> Any:
    holder = Fussy.__new__(type("Holder", (), {"__module__": __name__}))
    holder.lock = lock
    return holder


def test_the_items_of_a_call_are_named() -> None:
    call = (print, (1, {"x": threading.Lock()}), {})

    with pytest.raises(PackingError, match=r"^args\[1\]\['x'\]: cannot pickle '_thread.lock'"):
        pack(call, labels=("function", "args", "kwargs"))


def test_a_global_that_cannot_be_pickled_is_named(notebook: Notebook) -> None:
    notebook.run("import threading\nlock = threading.Lock()\ndef f(): return lock")

    with pytest.raises(PackingError, match="function, global lock: cannot pickle"):
        pack((notebook["f"], ()), labels=("function", "args"))


def test_what_cannot_be_rebuilt_is_named_with_its_cause() -> None:
    frames = pack(Fussy())

    with pytest.raises(PackingError, match=r"Fussy.__setstate__: no such state") as caught:
        unpack(frames)

    assert isinstance(caught.value.__cause__, RuntimeError)


def test_results_that_cannot_travel_become_errors_and_the_child_lives_on(
    child: Child, notebook: Notebook
) -> None:
    notebook.run("import threading\ndef f(): return {'a': threading.Lock()}\ndef g(): return 1")

    with pytest.raises(PackingError, match=r"\['a'\]"):
        child.call(notebook["f"])

    assert child.call(notebook["g"]) == 1


def test_exceptions_with_an_odd_init_keep_type_message_attributes_and_notes(
    child: Child, notebook: Notebook
) -> None:
    notebook.run(
        "import threading\n"
        "class Odd(ValueError):\n"
        "    def __init__(self, a, b):\n"
        "        super().__init__(f'{a} and {b}')\n"
        "        self.a, self.lock = a, threading.Lock()\n"
        "def bad():\n"
        "    error = Odd(1, 2)\n"
        "    error.add_note('a note')\n"
        "    raise error\n"
    )

    with pytest.raises(ValueError, match="1 and 2") as caught:
        child.call(notebook["bad"])

    assert type(caught.value) is notebook["Odd"]
    assert caught.value.a == 1
    assert caught.value.lock is None
    assert caught.value.__notes__ == ["a note"]


@pytest.mark.parametrize(
    "error",
    [
        KeyError("k"),
        OSError(2, "no such file", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        SyntaxError("bad", ("file", 1, 2, "text")),
        ImportError("no", name="x"),
        StopIteration(3),
        KeyboardInterrupt(),
        subprocess.CalledProcessError(3, ["a"]),
        urllib.error.HTTPError("http://x", 404, "gone", http.client.HTTPMessage(), io.BytesIO()),
        ExceptionGroup("several", [ValueError(1), KeyError(2)]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_standard_exceptions_keep_type_and_message(error: BaseException) -> None:
    frames = pack_exception(error)

    assert frames is not None
    rebuilt = unpack(frames)
    assert type(rebuilt) is type(error)
    assert str(rebuilt) == str(error)


def test_an_exception_whose_type_cannot_travel_is_none() -> None:
    class Meta(type):
        def __reduce_ex__(cls, protocol: object) -> Any:
            raise TypeError("never")

    held = threading.Lock()

    class StuckError(Exception):
        lock = held

    assert pack_exception(StuckError("x")) is None


def test_an_argument_of_an_exception_that_cannot_travel_is_its_repr() -> None:
    error = ValueError("x", threading.Lock())

    frames = pack_exception(error)

    assert frames is not None
    assert str(unpack(frames)) == str(error)


def test_packing_and_unpacking_without_tensors_never_imports_torch() -> None:
    code = (
        "import sys; from jupyter_mgpu import packing; import numpy as np;"
        "packing.unpack(packing.pack([np.zeros(9999), lambda: 1, ValueError(2)]));"
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_tensor_arrives_where_torch_was_not_loaded_yet(notebook: Notebook) -> None:
    torch = pytest.importorskip("torch")
    notebook.run("def total(t): return float(t.sum())")
    process = Child()

    assert process.call(notebook["total"], torch.ones(5000)) == 5000
    process.close()


def test_views_share_their_storage_and_parameters_their_identity() -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(10_000.0)
    weight = torch.nn.Parameter(torch.ones(3))

    frames = pack({"base": base, "view": base[10:9000], "a": weight, "b": [weight]})
    out = unpack([bytes(frame) for frame in frames])

    out["base"][10] = -1
    assert out["view"][0] == -1
    assert out["a"] is out["b"][0]
    assert out["a"].requires_grad
    assert count_bytes(frames) < 1.2 * base.nbytes


def test_a_small_view_alone_does_not_drag_its_storage_along() -> None:
    torch = pytest.importorskip("torch")

    frames = pack(torch.zeros(1_000_000)[:10])

    assert count_bytes(frames) < 10_000
    assert unpack(frames).shape == (10,)


def test_a_network_and_its_optimizer_stay_together(child: Child, notebook: Notebook) -> None:
    torch = pytest.importorskip("torch")
    notebook.run(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(4, 4)\n"
        "        self.tied = torch.nn.Linear(4, 4)\n"
        "        self.tied.weight = self.fc.weight\n"
        "        self.register_buffer('seen', torch.zeros(1))\n"
        "    def forward(self, x): return self.tied(self.fc(x))\n"
        "def train(net, opt):\n"
        "    before = net.fc.weight.detach().clone()\n"
        "    net(torch.ones(1, 4)).sum().backward()\n"
        "    opt.step()\n"
        "    return net, bool((net.fc.weight != before).any())\n"
        "net = Net()\n"
        "opt = torch.optim.Adam(net.parameters())\n"
    )

    net, has_moved = child.call(notebook["train"], notebook["net"], notebook["opt"])

    assert has_moved
    assert type(net) is notebook["Net"]
    assert net.tied.weight is net.fc.weight
    assert torch.equal(net.seen, torch.zeros(1))


def test_every_kind_of_tensor_keeps_dtype_shape_and_values() -> None:
    torch = pytest.importorskip("torch")
    tensors = [
        torch.ones(3, dtype=torch.bfloat16),
        torch.empty(0),
        torch.tensor(3.0),
        torch.ones(2, 3).t(),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.arange(10)[::2],
    ]

    for tensor in tensors:
        rebuilt = unpack([bytes(frame) for frame in pack(tensor)])
        assert rebuilt.shape == tensor.shape
        assert rebuilt.dtype == tensor.dtype
        if tensor.device.type == "cpu":
            assert torch.equal(rebuilt.to_dense(), tensor.to_dense())


def test_a_network_whose_shapes_are_not_known_yet_travels() -> None:
    torch = pytest.importorskip("torch")

    net = unpack(pack(torch.nn.LazyLinear(3)))

    assert net(torch.ones(1, 2)).shape == (1, 3)


def test_a_tensor_class_without_memory_is_marked_without_reading_it() -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)

    assert content(fake) == content(fake)


def test_hooks_are_dropped_as_torch_drops_them() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(print)

    with pytest.warns(UserWarning, match="hooks"):
        rebuilt = unpack(pack(weight))

    assert rebuilt.requires_grad
    assert not rebuilt._backward_hooks


def test_bytes_of_a_cuda_storage_become_a_cpu_tensor_where_no_device_was_set() -> None:
    torch = pytest.importorskip("torch")

    storage = rebuild_storage(torch.arange(3.0).numpy().tobytes(), True)  # noqa: FBT003 - pickle's

    assert storage.device.type == "cpu"
    assert torch.tensor(storage.tolist(), dtype=torch.uint8).view(torch.float32).tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.gpu
def test_cuda_tensors_arrive_on_the_cpu_where_no_device_was_set() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        if os.environ.get("MGPU_REQUIRE_GPUS"):
            pytest.fail("MGPU_REQUIRE_GPUS is set, but torch finds no GPU")
        pytest.skip("torch finds no GPU")
    frames = pack({"t": torch.ones(3, device="cuda"), "net": torch.nn.Linear(2, 2).cuda()})

    out = unpack(frames)

    assert out["t"].device.type == "cpu"
    assert out["net"].weight.device.type == "cpu"


def test_a_small_call_is_one_small_frame(notebook: Notebook) -> None:
    notebook.run("big = bytes(10**6)\ndef f(a, b): return a + b")

    frames = pack((notebook["f"], (1, 2), {}))

    assert len(frames) == 1
    assert count_bytes(frames) < 2_000


def test_the_file_name_of_a_code_object_is_kept(notebook: Notebook) -> None:
    # cloudpickle's own reducer puts a placeholder there; ours relies on its place in the tuple.
    notebook.run("def f(): pass")

    assert unpack(pack(notebook["f"])).__code__.co_filename == notebook["f"].__code__.co_filename


def test_a_traceback_does_not_travel() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        frames = pack_exception(error)

    assert frames is not None
    assert unpack(frames).__traceback__ is None
