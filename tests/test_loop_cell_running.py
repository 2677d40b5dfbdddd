"""A `%%parfor` cell at work: its function, its items, and how results come into the kernel."""

import copy
import linecache
import math
import operator
import pickle
import random
import textwrap
import traceback

import numpy as np
import pytest
import torch

from jupyter_mgpu.errors import LoopBodyError
from jupyter_mgpu.loop_cell import Collector, classify, iteration_function, loop_items
from jupyter_mgpu.packing import count_bytes, pack, unpack


def kernel(**names):
    return {"__name__": "__main__", "math": math, "np": np, **names}


class Loop:
    """A cell, made ready to run by hand."""

    def __init__(self, header, body, **names):
        self.kernel = kernel(**names)
        source = textwrap.dedent(body)
        self.cell = classify(header, source, namespace=self.kernel, filename="<cell 7>")
        self.run = iteration_function(self.cell, self.kernel)
        self.items = loop_items(self.cell, self.kernel)
        self.collector = Collector(self.cell, self.kernel)

    def collect(self, items):
        for index, item in enumerate(items):
            self.collector.apply(index, self.run(item))


def lines_of(error, filename="<cell 7>"):
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno for frame in frames if frame.filename == filename]


def test_an_iteration_returns_what_it_did_in_that_order() -> None:
    loop = Loop(
        "i in range(3)", "total += i\nxs.append(-i)\nout[i] = 2 * i", total=0, xs=[], out={}
    )

    assert loop.run(2) == ((0, 2), (1, -2), (2, 2, 4))


def test_the_function_travels_with_the_names_that_it_reads_and_no_others() -> None:
    loop = Loop(
        "i in range(3)", "out.append(i * k + xs[i])", k=5, big=bytes(10**6), xs=[1, 2, 3], out=[]
    )

    frames = pack(loop.run)
    function = unpack(frames)

    assert function((2, 3)) == ((0, 13),)
    assert function.__globals__["k"] == 5
    assert not {"xs", "out", "big"} & set(function.__globals__)
    assert count_bytes(frames) < 10_000


def test_only_the_element_of_an_iteration_travels_with_its_item() -> None:
    a = np.arange(3_000_000.0).reshape(3, -1)
    loop = Loop("i in range(3)", "total += a[i].sum()", a=a, total=0)

    items = list(loop.items)

    assert [item[0] for item in items] == [0, 1, 2]
    np.testing.assert_array_equal(items[1][1], a[1])
    assert count_bytes(pack(items[1])) < 1.1 * a[1].nbytes


def test_items_are_read_one_by_one_and_an_element_with_its_item() -> None:
    read = []

    def numbers():
        for number in range(3):
            read.append(number)
            yield number

    loop = Loop("i in numbers()", "total += xs[i]", numbers=numbers, xs=[1, 2, 3], total=0)
    items = iter(loop.items)

    assert next(items) == (0, 1)
    assert read == [0]


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ("i in range(7)", 7),
        ("i, x in enumerate(xs)", 3),
        ("i, x in enumerate(xs, start=1)", 3),
        ("x, y in zip(xs, range(9))", 3),
        ("k, v in {1: 2}.items()", 1),
        ("x in (y for y in xs)", None),
        ("x in map(str, xs)", None),
    ],
)
def test_the_number_of_items_is_known_where_the_iterable_knows_it(header, length) -> None:
    loop = Loop(header, "pass", xs=[1, 2, 3])

    assert operator.length_hint(loop.items, -1) == (-1 if length is None else length)
    assert length is None or len(list(loop.items)) == length


def test_what_is_no_iterable_is_told_before_the_loop() -> None:
    with pytest.raises(TypeError, match=r"5 was given, .* mean range\(5\)"):
        Loop("i in n", "pass", n=5)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("i in range(-2, 3)", "a[i] = a[i] * 2"),
        ("i in range(3, -3, -1)", "a[i] = a[i] * 2"),
        ("i in range(4)", "y = 0\na[i - k] = a[i - k] * 2"),
        ("i, x in enumerate('abcd')", "y = 0\na[i - 1] = a[i - 1] * 2"),
        ("i in range(-1, 2)", "y = 0\nm[:, i] += 1\nb.append(m[:, i])"),
    ],
)
def test_elements_that_two_iterations_may_share_are_refused(header: str, body: str) -> None:
    with pytest.raises(LoopBodyError, match="a negative one counts from the end") as caught:
        Loop(header, body, a=[1, 2, 3, 4], k=1, m=np.ones((2, 3)), b=[])

    assert caught.value.lineno == len(body.splitlines()) + 1


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("i in range(-3, 0)", "a[i] = a[i] * 2"),
        ("i in range(3, 0, -1)", "a[i] = a[i] * 2"),
        ("i in range(0)", "a[i - 1] = a[i - 1] * 2"),
        ("i in range(-1, 2)", "d[i] = d[i] * 2"),
        ("i in range(1, 4)", "a[i - k] = a[i - k] * 2"),
    ],
)
def test_elements_of_one_side_are_each_iteration_s_own(header: str, body: str) -> None:
    names = {"a": [1, 2, 3, 4], "k": 1, "d": {-1: 1, 0: 2, 1: 3}}
    plain = kernel(**copy.deepcopy(names))
    exec(f"for {header}: {body}", plain)
    loop = Loop(header, body, **names)

    loop.collect(loop.items)
    loop.collector.finish()

    assert (loop.kernel["a"], loop.kernel["d"]) == (plain["a"], plain["d"])


def test_a_loader_is_not_started_to_see_whether_it_can_be() -> None:
    class Loader:
        num_started = 0

        def __iter__(self):
            self.num_started += 1
            return iter([1])

    loader = Loader()

    loop = Loop("x in loader", "pass", loader=loader)

    assert loader.num_started == 0
    assert list(loop.items) == [1]


def test_an_error_shows_the_line_of_the_cell() -> None:
    loop = Loop("i in range(3)", "y = 1\n\nif i:\n    y = y / 0\n", y=0)

    with pytest.raises(ZeroDivisionError) as caught:
        loop.run(1)

    assert lines_of(caught.value) == [5]


def test_an_error_on_an_engine_shows_the_text_of_the_cell() -> None:
    loop = Loop("i in range(3)", "y = 1 / i", y=0)
    text = "%%parfor i in range(3)\ny = 1 / i\n"
    linecache.cache["<cell 7>"] = (len(text), None, text.splitlines(keepends=True), "<cell 7>")
    frames = pack(loop.run)
    del linecache.cache["<cell 7>"]

    with pytest.raises(ZeroDivisionError) as caught:
        unpack(frames)(0)

    assert "y = 1 / i" in "".join(traceback.format_exception(caught.value))


def test_an_item_that_does_not_fit_the_target_is_the_magic_s_line() -> None:
    loop = Loop("a, b in [(1, 2, 3)]", "pass")

    with pytest.raises(ValueError, match="too many values") as caught:
        loop.run((1, 2, 3))

    assert lines_of(caught.value) == [1]


def test_an_element_that_is_missing_raises_where_it_is_read() -> None:
    loop = Loop("i in range(3)", "if i:\n    total += xs[i]", xs=[1], total=0)
    items = [pickle.loads(pickle.dumps(item)) for item in loop.items]

    assert loop.run(items[0]) == ()
    with pytest.raises(IndexError, match="list index out of range") as caught:
        loop.run(items[2])
    assert lines_of(caught.value) == [3]


def test_a_name_that_is_unset_is_an_error_and_no_value_of_another_iteration() -> None:
    loop = Loop("i in range(3)", "if i == 0:\n    y = i\ntotal += y", total=0, y=7)

    assert loop.run(0) == ((0, 0),)
    with pytest.raises(UnboundLocalError, match="'y'"):
        loop.run(1)


def test_no_name_of_the_kernel_changes_before_the_loop_has_ended() -> None:
    body = """
        total += i
        xs.append(i)
        out[i] = i
        acc += i
        lists += [i]
        t += i
    """
    names = {"total": 0, "xs": [], "out": {}, "acc": np.zeros(2), "lists": [], "t": torch.zeros(2)}
    before = copy.deepcopy(names)
    loop = Loop("i in range(3)", body, **names)

    loop.collect(range(2))

    for name, value in before.items():
        assert np.array_equal(loop.kernel[name], value)
        assert loop.kernel[name] is names[name]
    partial = loop.collector.partial()
    assert partial["total"] == 1
    assert partial["xs"] == [(0,), (1,)]
    assert partial["out"] == [(0, 0), (1, 1)]
    assert partial["acc"].tolist() == partial["t"].tolist() == [1, 1]
    assert partial["lists"] == [([0],), ([1],)]


def test_results_are_taken_in_loop_order_only() -> None:
    loop = Loop("i in range(3)", "total += i", total=0)
    loop.collector.apply(1, loop.run(1))

    with pytest.raises(ValueError, match="iteration 0 was applied after that of iteration 1"):
        loop.collector.apply(0, loop.run(0))


def test_iterations_that_failed_may_be_left_out() -> None:
    loop = Loop("i in range(9)", "xs.append(i)", xs=[])
    loop.collector.apply(2, loop.run(2))
    loop.collector.apply(5, loop.run(5))

    loop.collector.finish()

    assert loop.kernel["xs"] == [2, 5]
    assert loop.collector.num_applied == 2


def test_an_output_that_is_too_short_is_an_error_of_its_line() -> None:
    loop = Loop("i in range(3)", "y = i\nout[i] = y", out=[0, 0])
    loop.collect(range(3))

    with pytest.raises(IndexError) as caught:
        loop.collector.finish()

    assert lines_of(caught.value) == [3]
    assert loop.kernel["out"] == [0, 1]  # as in the plain loop


def test_a_fold_that_fails_is_an_error_of_its_line() -> None:
    loop = Loop("i in range(3)", "total = max(total, str(i))", total=0)

    with pytest.raises(TypeError) as caught:
        loop.collect(range(3))

    assert lines_of(caught.value) == [2]


def test_folding_numbers_and_arrays_keeps_no_operands() -> None:
    loop = Loop(
        "i in range(3)", "total += i\nacc += a[i]", total=0, acc=np.zeros(4), a=np.ones((3, 4))
    )

    loop.collect(loop.items)

    assert loop.collector.partial().keys() == {"total", "acc"}
    assert loop.collector.partial()["acc"].tolist() == [3] * 4


def test_an_array_of_the_kernel_stays_the_same_array() -> None:
    acc = np.zeros(4)
    loop = Loop("i in range(3)", "acc += i", acc=acc, view=acc[1:])
    loop.collect(range(3))

    loop.collector.finish()

    assert loop.kernel["acc"] is acc
    assert loop.kernel["view"].tolist() == [3, 3, 3]


# Bodies put together at random

STATEMENTS = (
    "total += i * 0.1",
    "total -= 1 / (i + 3)",
    "product = product * (1 + i / 100)",
    "text = str(i) + text",
    "low = min(low, (i * 7) % 5)",
    "xs.append((i, 'a'))",
    "xs.extend(k for k in range(i % 3))",
    "xs += [i]",
    "seen.add(i % 4)",
    "seen |= {i}",
    "d[i % 3] = i",
    "d.update({i: 'u'})",
    "groups.setdefault(i % 2, []).append(i)",
    "counts[i % 2] += 1",
    "out[i] = i / 3",
    "out[i], y, *_ = i, 1, 2, 3",
    "both[i] = both[i] * 1.1 + 0.1",
    "both[i] += i\nxs.append(float(both[i]))",
    "acc += np.arange(3) * i",
    "f32 += 0.1 * i",
    "y = squares[i]\nxs.append(y)",
    "helper = lambda z: z + i + scale\nxs.append(helper(2))",
    "xs.append([(a, w := a * i) for a in range(2)])",
    "y = 0\nfor j in range(3):\n    if j > i: break\n    y += j\nxs.append(y)",
)
WRAPPERS = (
    "{}",
    "if i % 2:\n{}",
    "if i > 3:\n    continue\n{}",
    "if i % 3 == 0:\n    pass\nelse:\n{}",
    "for _j in range(i % 3):\n{}",
    "_n = 2\nwhile _n:\n    _n -= 1\n{}",
    "try:\n    pass\nfinally:\n{}",
    "with open('/dev/null') as _file:\n{}",
    "match i % 2:\n    case 1:\n    {}",
)


def random_body(rng):
    parts = []
    for _ in range(rng.randint(1, 6)):
        statement = rng.choice(STATEMENTS)
        wrapper = rng.choice(WRAPPERS)
        depth = 0 if wrapper.startswith(("{", "if i > 3")) else 4
        if wrapper.startswith("match"):
            wrapper, depth = wrapper.replace("    {}", "{}"), 8
        parts.append(wrapper.format(textwrap.indent(statement, " " * depth)))
    return "\n".join(parts)


def exact(value):
    return (value.dtype, value.tobytes()) if isinstance(value, np.ndarray) else repr(value)


def start_values():
    return {
        "total": 0.1, "product": 1.0, "text": "", "low": 9, "xs": [], "seen": set(), "d": {},
        "groups": {}, "counts": [0, 0], "out": np.zeros(8, np.float32), "scale": 3,
        "both": np.arange(8, dtype=np.float32), "acc": np.zeros(3), "f32": np.ones(2, np.float32),
        "squares": [n * n for n in range(8)],
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(150))
def test_a_random_body_gives_what_the_plain_loop_gives(seed: int) -> None:
    rng = random.Random(seed)
    body = random_body(rng)
    plain = kernel(**start_values())
    exec(f"for i in range(8):\n{textwrap.indent(body, '    ')}", plain)
    loop = Loop("i in range(8)", body, **start_values())
    items = [unpack(pack(item)) for item in loop.items]
    order = rng.sample(range(8), 8)

    results = {index: unpack(pack(loop.run(items[index]))) for index in order}
    for index in range(8):
        loop.collector.apply(index, results[index])
    loop.collector.finish()

    for name in start_values():
        assert exact(loop.kernel[name]) == exact(plain[name]), body
