"""Names of cells, bindings, and what an engine says about its values."""

import sys
from typing import Any

import numpy as np
import pytest

from jupyter_mgpu.errors import PackingError
from jupyter_mgpu.on_engine.namespace import EngineNamespace
from jupyter_mgpu.on_engine.namespace.bindings import Bindings
from jupyter_mgpu.on_engine.namespace.names import CellNames, analyse, is_user_name
from jupyter_mgpu.sending import Sender


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("a = b", "b"),
        ("a = 1; a", ""),
        ("a += 1", "a"),
        ("a: int = b", "b int"),
        ("a: int", "int"),
        ("x[i] = 1; y.z = 2", "x i y"),
        ("del a", ""),
        ("a = 1\ndel a\na", "a"),
        ("for i in r: i", "r"),
        ("for i in r: pass\ni", "r i"),
        ("[i + k for i in r if c]", "r k c"),
        ("[j for i in r for j in i]", "r"),
        ("{k: v for k, v in m.items()}", "m"),
        ("(y := f(x)); y", "f x"),
        ("[z for z in r if (w := z)]; w", "r w"),
        ("if t: a = 1\na", "t a"),
        ("if t: a = 1\nelse: a = 2\na", "t"),
        ("if t: a = 1\nelse: raise E\na", "t E"),
        ("while t: a = 1\na", "t a"),
        ("try:\n    a = 1\nexcept E as e:\n    e; a = 2\na", "E"),
        ("try:\n    a = f()\nexcept E:\n    pass\na", "f E a"),
        ("try:\n    pass\nfinally:\n    a = 1\na", ""),
        ("with open(p) as f: f.read()", "open p"),
        ("match v:\n    case {'a': [x, *y], **z} if g(x): x, y, z", "v g"),
        ("import a.b, c as d\nfrom e import f\na, d, f", ""),
        ("def f(x, y=d): return x + y + g", "d g"),
        ("def f(): return f()", ""),
        ("def f(): return g()\ndef g(): return f()", ""),
        ("def f(): return x\nx = 1", "x"),
        ("x = 1\ndef f(): return x", ""),
        ("def f():\n    global n\n    n = 1\n    return m", "m"),
        ("def f():\n    x = 1\n    def g(): return x + y\n    return g", "y"),
        ("@deco\ndef f(a: A) -> R: pass", "deco A R"),
        ("async def f(): return await g()", "g"),
        ("f = lambda x: x + k", "k"),
        (
            "class C(B, metaclass=M):\n    a = b\n    c = a\n    def m(self): return a + self.c",
            "B M b a",
        ),
        ("class C:\n    def m(self): return super().m() + C.x", "super"),
        ("f'{a} {b!r:>{w}}'", "a b w"),
        ("await a", "a"),
        ("async for x in y: x", "y"),
        ("(a for a in b)", "b"),
        ("a if b else c", "a b c"),
        ("b and (a := 1); a", "b a"),
        ("print(a, *b, **c)", "print a b c"),
        ("not python at all(", ""),
        ("", ""),
    ],
)
def test_the_names_a_cell_reads(source: str, read: str) -> None:
    assert analyse(source).read == set(read.split())


@pytest.mark.parametrize(
    ("source", "bound", "maybe_bound"),
    [
        ("a = b = 1; c, (d, *e) = f", "a b c d e", ""),
        ("import a.b, c as d\nfrom e import f as g, h", "a d g h", ""),
        ("def f(): x = 1\nclass C: y = 1\nasync def g(): pass", "f C g", ""),
        ("for i in r: a = 1", "", "i a"),
        ("if t: a = 1\nelse: a = 2; b = 1", "a", "b"),
        ("with o as f: a = 1", "f a", ""),
        ("[(w := x) for x in y]", "", "w"),
        ("x.a = 1; x[0] = 2", "", ""),
        ("a += 1; b: int = 2; c: int", "a b", ""),
    ],
)
def test_the_names_a_cell_binds(source: str, bound: str, maybe_bound: str) -> None:
    names = analyse(source)

    assert names.bound == set(bound.split())
    assert names.maybe_bound == set(maybe_bound.split())


def test_magics_are_looked_into() -> None:
    from IPython.core.inputtransformer2 import TransformerManager

    transform = TransformerManager().transform_cell

    assert analyse("%%time\nx = y", transform).bound == {"x"}
    assert analyse("%time x = y", transform).bound == {"x"}
    assert analyse("%%capture out\nx = 1", transform).bound == {"x", "out"}
    assert analyse("files = !ls {folder}", transform).bound == {"files"}
    assert "x" not in analyse("%%spmd\nx = 1", transform).bound
    assert analyse("%matplotlib inline\nx = 1\n!ls").bound == {"x"}  # without IPython


def test_the_shells_names_are_not_the_users() -> None:
    shell = ["_", "__", "___", "_1", "_i", "_i12", "_ii", "_ih", "_oh", "_dh", "In", "Out"]

    assert not any(is_user_name(name) for name in [*shell, "__name__", "get_ipython", "exit"])
    assert all(is_user_name(name) for name in ["x", "_private", "_id", "_i_", "inputs"])


def test_a_binding_to_another_object_is_seen() -> None:
    names: dict[str, Any] = {"a": [1], "b": np.ones(2), "c": 5, "d": "text"}
    bindings = Bindings(names)
    nothing = CellNames()
    assert bindings.changes(nothing, failed=False) == (set(), set())

    names.update(a=[1], b=np.ones(2), c=6, e=1)
    names["d"] += "."

    assert bindings.changes(nothing, failed=False) == ({"a", "b", "c", "d", "e"}, set())
    del names["a"]
    assert bindings.changes(nothing, failed=False) == (set(), {"a"})


def test_a_change_inside_is_no_binding() -> None:
    names: dict[str, Any] = {"a": [1], "b": np.ones(2)}
    bindings = Bindings(names)

    names["a"].append(2)
    names["b"][0] = 7

    assert bindings.changes(CellNames(), failed=False) == (set(), set())


def test_a_binding_to_the_same_object_is_seen_in_the_text() -> None:
    names: dict[str, Any] = {"a": 5, "b": 5}
    bindings = Bindings(names)

    assert bindings.changes(analyse("a = 5"), failed=False)[0] == {"a"}
    assert bindings.changes(analyse("if True: a = 5"), failed=False)[0] == {"a"}
    assert bindings.changes(analyse("a = 5"), failed=True)[0] == set()


def test_bindings_keep_nothing_alive() -> None:
    array = np.ones(1000)
    names = {"a": array}
    bindings = Bindings(names)
    before = sys.getrefcount(array)

    bindings.look()

    assert sys.getrefcount(array) == before


def test_a_cell_reports_what_it_bound_and_deleted() -> None:
    names: dict[str, Any] = {"x": 1, "y": 2, "rank": 0}
    space = EngineNamespace(names)
    source = "x = 1\nz = 3\ndel y\nrank = 7"
    space.before_cell()
    exec(source, names)

    report = space.after_cell(source)

    assert report["rebound"] == ["x", "z"]
    assert report["deleted"] == ["y"]
    assert report["names"] == ["x", "z"]


def test_a_cell_that_did_not_start_reports_nothing() -> None:
    space = EngineNamespace({"x": 1})

    assert space.after_cell("x = 2")["rebound"] == []


def test_changes_inside_are_found_by_name() -> None:
    kernel: dict[str, Any] = {"xs": [1], "a": np.ones(3), "n": 1, "d": {"a": 1}}
    names: dict[str, Any] = {}
    space = EngineNamespace(names)
    plan = Sender(kernel).plan("xs, a, n, d", [0])
    space.receive([bytes(frame) for frame in plan.frames[0]])
    assert space.changed(["xs", "a", "n", "d"]) == set()

    names["xs"].append(2)
    names["a"][0] = 9

    assert space.changed(["xs", "a", "n", "d", "unknown"]) == {"xs", "a"}


def test_a_stream_that_refers_to_what_is_gone_changes_nothing() -> None:
    kernel: dict[str, Any] = {"a": np.ones(3)}
    sender = Sender(kernel)
    names: dict[str, Any] = {}
    space = EngineNamespace(names)
    plan = sender.plan("a", [0])
    space.receive([bytes(frame) for frame in plan.frames[0]])
    plan.commit(0)
    kernel["b"] = [kernel["a"], 1]
    del names["a"]

    plan = sender.plan("b", [0])
    missing = space.receive([bytes(frame) for frame in plan.frames[0]])

    assert missing
    assert names == {}
    assert space.receive([bytes(frame) for frame in plan.repack(0, missing)]) == []
    assert names["b"][0].tolist() == [1, 1, 1]


def test_a_stream_that_cannot_be_read_defines_nothing() -> None:
    names: dict[str, Any] = {"x": 1}
    space = EngineNamespace(names)
    plan = Sender({"x": [1], "y": [2]}).plan("x, y", [0])
    frames = [bytes(frame) for frame in plan.frames[0]]

    with pytest.raises(PackingError):
        space.receive([frames[0], frames[1][:-10]])

    assert names == {"x": 1}


class _Rude:
    def __repr__(self) -> str:
        raise AssertionError("a summary runs no code of the user's")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a look compares no values")

    def __reduce_ex__(self, protocol: object) -> Any:
        raise AssertionError("a look packs no values")

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a summary asks for no attribute, such as {name}")

    def __call__(self) -> None: ...


def test_a_summary_describes_values_without_running_their_code() -> None:
    torch = pytest.importorskip("torch")
    names = {
        "n": 3,
        "s": "x" * 500,
        "xs": [1, 2],
        "a": np.ones((2, 3), dtype="float32"),
        "t": torch.ones(4),
        "r": _Rude(),
        "f": len,
    }

    found = EngineNamespace(names).summary([*names, "missing"])

    assert found["missing"] is None
    assert found["n"] == {"type": "int", "shape": None, "dtype": None, "device": None, "repr": "3"}
    assert len(found["s"]["repr"]) <= 82
    assert found["xs"]["repr"] == "list of 2"
    assert (found["a"]["shape"], found["a"]["dtype"]) == ([2, 3], "float32")
    assert (found["t"]["shape"], found["t"]["dtype"], found["t"]["device"]) == (
        [4],
        "float32",
        "cpu",
    )
    assert found["r"]["type"] == "_Rude"


def test_values_are_read_bound_and_deleted_by_name() -> None:
    space = EngineNamespace({})

    space.set_value("x", 3)
    assert space.get("x") == 3
    space.delete("x")
    space.delete("x")

    with pytest.raises(NameError, match="'x' is not defined on this engine"):
        space.get("x")


def test_a_cell_costs_no_look_into_the_values_of_others() -> None:
    names = {f"name{i}": _Rude() for i in range(1000)}
    space = EngineNamespace(names)

    space.before_cell()
    names["name7"] = _Rude()
    report = space.after_cell("x = 1")

    assert report["rebound"] == ["name7"]
