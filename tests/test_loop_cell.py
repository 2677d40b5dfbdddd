"""The analysis behind `%%parfor`: what is classified, refused, run and brought back."""

import ast
import copy
import math
import random
import textwrap
from collections import Counter, defaultdict, deque

import numpy as np
import pytest
import torch

from jupyter_mgpu.loop_cell import (
    Collector,
    classify,
    iteration_function,
    loop_items,
)
from jupyter_mgpu.packing import pack, unpack


def sent(value):
    """Bring a value to an engine, or back."""
    return unpack(pack(value))


def kernel(**names):
    """Make a namespace like the kernel's."""
    return {"__name__": "__main__", "math": math, "np": np, "torch": torch, **names}


def run_serially(header, body, namespace):
    tree = ast.parse(f"for {header}: pass")
    tree.body[0].body = ast.parse(textwrap.dedent(body)).body
    exec(compile(tree, "<loop>", "exec"), namespace)


def run_on_engines(header, body, namespace, *, order=None):
    """Run the iterations in any order, each in a copy of the function, and collect in order."""
    loop = classify(header, textwrap.dedent(body), namespace=namespace)
    function = iteration_function(loop, namespace)
    collector = Collector(loop, namespace)
    items = [sent(item) for item in loop_items(loop, namespace)]
    indexes = list(range(len(items)))
    (order or random.Random(len(body)).shuffle)(indexes)
    results = {index: sent(sent(function)(items[index])) for index in indexes}
    for index in range(len(items)):
        collector.apply(index, results[index])
    collector.finish()
    return loop


def assert_same(mine, theirs):
    """Compare two values and all in them, with types, bit by bit."""
    assert type(mine) is type(theirs)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    elif isinstance(mine, np.ndarray):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    elif isinstance(mine, dict):
        assert list(mine) == list(theirs)
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, list | tuple | deque):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    else:
        assert mine == theirs


def assert_equals_the_plain_loop(header, body, **names):
    plain, ours = copy.deepcopy(names), copy.deepcopy(names)
    plain_kernel, our_kernel = kernel(**plain), kernel(**ours)
    run_serially(header, body, plain_kernel)

    loop = run_on_engines(header, body, our_kernel)

    for name in names:
        if not callable(names[name]):
            assert_same(our_kernel[name], plain_kernel[name])
            # An object that the plain loop changes in place is changed in place.
            assert (our_kernel[name] is ours[name]) == (plain_kernel[name] is plain[name]), name
    assert set(our_kernel) - {"__builtins__"} == set(kernel(**names))
    return loop


# Functions that the bodies below use.


def double(x):
    return 2 * x


def larger(a, b):
    return max(a, b)


def merged(one, other):
    return {**one, **other}


class Meter:
    """Has an update method, and is no container."""

    def __init__(self):
        self.seen = []

    def update(self, *values, weight=1):
        self.seen.append((values, weight))

    def __eq__(self, other):
        return self.seen == other.seen

    __hash__ = None


EQUAL_TO_THE_PLAIN_LOOP = {
    # Reductions
    "sum": ("i in range(9)", "total += i * 0.1", {"total": 0.3}),
    "sum of floats in loop order": ("i in range(50)", "s += 1 / (i + 1) ** 3", {"s": 1e16}),
    "difference": ("i in range(5)", "left -= i", {"left": 100}),
    "product": ("i in range(1, 9)", "p *= i", {"p": 1}),
    "division": ("i in range(1, 9)", "p /= i", {"p": 1e9}),
    "power, modulo, shift": (
        "i in range(2, 4)",
        "a **= i\nb %= i + 3\nc <<= i\nd >>= 1\ne //= i",
        {"a": 3, "b": 17, "c": 1, "d": 99, "e": 1000},
    ),
    "bits": ("i in range(6)", "a |= 1 << i\nb &= ~i\nc ^= i", {"a": 0, "b": 255, "c": 1}),
    "matrix product": (
        "i in range(4)",
        "m @= np.array([[i, 1], [1, 0]])\nn = n @ np.array([[i, 1], [1, 1]])",
        {"m": np.eye(2), "n": np.eye(2)},
    ),
    "x = x + e": ("i in range(9)", "s = s + i", {"s": 0.5}),
    "x = e + x": ("i in range(9)", "s = i + s", {"s": 0.5}),
    "a text grows at its start": ("c in 'abc'", "s = c + s", {"s": "!"}),
    "x = e - x": ("i in range(9)", "s = i - s", {"s": 0.5}),
    "x = x + a + b": ("i in range(9)", "s = s + i * 0.1 + i / 7", {"s": 0.5}),
    "x = (a + x) * b": ("i in range(9)", "s = (i + s) * 1.01", {"s": 0.5}),
    "two operators": ("i in range(1, 9)", "s += i\ns *= 2", {"s": 1}),
    "and, or": (
        "i in range(5)",
        "good = good and i < 3\nany_ = any_ or i * (i == 4)\nlast = i and last",
        {"good": True, "any_": 0, "last": 5},
    ),
    "min and max": (
        "x in xs",
        "low = min(low, x)\nhigh = max(x, high)\nbest = max(best, x, key=abs)",
        {"xs": [3, -9, 4, 8], "low": 99, "high": -99, "best": 0},
    ),
    "a function of the notebook": (
        "i in range(6)",
        """
        best = larger(best, (i * 5) % 7)
        d = merged(d, {i: i * i})
        c = merged(one={0: i}, other=c)
        """,
        {"best": 0, "d": {}, "c": {}, "larger": larger, "merged": merged},
    ),
    "a function of a module": (
        "i in range(6)",
        "g = math.gcd(g, i * 6)\nm = np.maximum(m, np.array([i, 3 - i]))",
        {"g": 0, "m": np.array([1, 1])},
    ),
    "concatenation": (
        "i in range(4)",
        """
        a = np.concatenate([a, np.full(i, i)])
        t = torch.cat((t, torch.full((i,), 1.5)), dim=0)
        xs = xs + [i]
        ys = [*ys, i, i]
        zs += (i,)
        """,
        {"a": np.zeros(1), "t": torch.zeros(1), "xs": [9], "ys": [], "zs": ()},
    ),
    "x = x.method(e)": (
        "i in range(4)",
        "s = s.union({i, i + 1})\nt = t.maximum(torch.tensor([i, 2]))",
        {"s": set(), "t": torch.tensor([1, 1])},
    ),
    "an operator that makes a new tensor": (
        "i in range(3)",
        "t @= torch.ones(2, 2) * i\nu += i",
        {"t": torch.eye(2), "u": np.float32(1)},
    ),
    "count": ("w in words", "n += 1\nm = m + 1", {"words": ["a", "b"], "n": 0, "m": 0}),
    "an array": (
        "i in range(5)",
        "a += np.arange(3) * i\nf += 1 / (i + 1)\nz -= i",
        {"a": np.zeros(3), "f": np.zeros((2, 2), np.float32), "z": np.array(3)},
    ),
    "an array that is replaced": ("i in range(4)", "a = a + np.arange(3)", {"a": np.zeros(3)}),
    "a tensor": (
        "i in range(5)",
        "t += torch.arange(3) * i\nu = u + 1.5",
        {"t": torch.zeros(3), "u": torch.ones(2)},
    ),
    "a view": ("i in range(3)", "v += i", {"v": np.zeros((4, 4))[::2, 1]}),
    "lists in place": ("i in range(4)", "xs += [i, i]\nys *= 1", {"xs": [0], "ys": [1]}),
    "append": ("i in range(5)", "xs.append(i * 2)", {"xs": [7]}),
    "extend": (
        "i in range(4)",
        """
        xs.extend([i] * i)
        xs.extend(j * j for j in range(i))
        xs.extend(map(str, (i, i)))
        xs.extend({i: 1}.keys())
        """,
        {"xs": []},
    ),
    "update and add": (
        "i in range(4)",
        """
        d.update({i: i * i})
        d.update(last=i)
        d.update(zip("ab", (i, i)))
        s.add(i % 2)
        s.update(range(i), [9])
        c.update("abc"[:i])
        q.appendleft(i)
        xs.insert(0, i)
        s.discard(9)
        """,
        {"d": {}, "s": set(), "c": Counter("z"), "q": deque(maxlen=3), "xs": []},
    ),
    "a meter": ("i in range(3)", "meter.update(i, i + 1, weight=2)", {"meter": Meter()}),
    "groups": (
        "i in range(7)",
        "groups[i % 3].append(i)\nmore.setdefault(i % 2, []).append(i)",
        {"groups": defaultdict(list), "more": {}},
    ),
    "histogram": (
        "x in xs",
        "h[x % 3] += 1\nc[x] += 1\nw[x % 2, 0] += x * 0.1\nfirst[0] += x",
        {
            "xs": [1, 4, 4, 7, 2],
            "h": np.zeros(3, int),
            "c": Counter(),
            "w": np.zeros((2, 2)),
            "first": [0],
        },
    ),
    "append and +=": ("i in range(3)", "xs.append(i)\nxs += [9]\nxs[-1] += 1", {"xs": []}),
    "inner loops": (
        "i in range(4)",
        "for j in range(i):\n    total += j\n    xs.append((i, j))",
        {"total": 0, "xs": []},
    ),
    "branches": (
        "i in range(9)",
        "if i % 3 == 0:\n    zero += 1\nelif i % 3 == 1:\n    one.append(i)\nelse:\n    two[i] = i",
        {"zero": 0, "one": [], "two": {}},
    ),
    # Sliced outputs
    "list": ("i in range(5)", "out[i] = i * i", {"out": [None] * 5}),
    "dict": ("k in ['a', 'b']", "d[k] = k * 2", {"d": {"z": 0}}),
    "array": ("i in range(4)", "a[i] = i / 3", {"a": np.zeros(4, np.float32)}),
    "tensor": ("i in range(4)", "t[i] = torch.arange(3) + i", {"t": torch.zeros(4, 3)}),
    "rows and columns": (
        "i in range(3)",
        "a[i, :] = i\nb[:, i] = np.arange(2) + i\nc[i, 1:, ...] = i\nd[..., i, None] = i",
        {
            "a": np.zeros((3, 2)),
            "b": np.zeros((2, 3)),
            "c": np.zeros((3, 3)),
            "d": np.zeros((1, 3)),
        },
    ),
    "offsets": (
        "i in range(1, 4)",
        "a[i - 1] = i\nb[i + k] = i\nc[k + i] = i\nd[-i] = i\ne[2 * i] = i",
        {"k": 1, "a": [0] * 9, "b": [0] * 9, "c": [0] * 9, "d": [0] * 9, "e": [0] * 9},
    ),
    "any index, the last one wins": (
        "i in range(8)",
        "a[perm[i]] = i\nd[f'k{i % 3}'] = i\nn[i % 2][i % 3] = i\ns[i:] = [i]",
        {"perm": [3, 1, 2, 0] * 2, "a": [0] * 4, "d": {}, "n": [[0] * 3, [0] * 3], "s": [0] * 9},
    ),
    "several targets": (
        "i in range(4)",
        """
        a[i], b[i] = i, -i
        c[i] = x = d[i] = [i]
        (e[i], (y, *f[i])) = i, (1, 2, 3)
        *g[i], h[i] = range(i + 1)
        out.append((x, y))
        """,
        {name: [0] * 4 for name in "abcdefgh"} | {"out": []},
    ),
    "annotated": (
        "i in range(3)",
        "y: int = i\nz: float\na[i]: int = y\ntotal: int = total + y",
        {"a": [0] * 3, "total": 0},
    ),
    "the length of what is written": (
        "i in range(len(a))",
        "a[i] = i",
        {"a": [0] * 4},
    ),
    "what is enumerated": ("i, x in enumerate(xs)", "xs[i] = x * 2", {"xs": [1, 2, 3]}),
    "what is enumerated, read by index": (
        "i, x in enumerate(xs)",
        "xs[i] = x + xs[i]",
        {"xs": np.arange(4.0)},
    ),
    # Sliced inputs, and both
    "in and out": ("i in range(5)", "a[i] = a[i] * 2", {"a": list(range(5))}),
    "in and out, float32": (
        "i in range(5)",
        "a[i] = a[i] / 3\nb[i] = a[i] * 2\nb[i] += a[i]",
        {"a": np.arange(5, dtype=np.float32), "b": np.zeros(5)},
    ),
    "in and out, integers": (
        "i in range(5)",
        "a[i] = i / 2\nb.append(a[i])\na[i] += 1\nb.append(a[i])",
        {"a": np.arange(5), "b": []},
    ),
    "in and out, tensor": (
        "i in range(5)",
        "a[i] = i / 3\nb[i] = a[i].double() * 2\na[i] *= 2\nc.append(float(a[i]))",
        {"a": torch.zeros(5), "b": torch.zeros(5, dtype=torch.double), "c": []},
    ),
    "in and out, rows": (
        "i in range(3)",
        "row = a[i]\na[i] += i\na[i] = a[i] * 2\nout.append(row.sum())\ns[i] = float(a[i].sum())",
        {"a": np.ones((3, 4), np.float32), "out": [], "s": [0] * 3},
    ),
    "in and out, columns": (
        "i in range(3)",
        "a[:, i] = a[:, i] * i",
        {"a": np.ones((4, 3), np.float32)},
    ),
    "in and out under a condition": (
        "i in range(6)",
        "if i % 2:\n    d[i] = d[i] + 1",
        {"d": {1: 1, 3: 3, 5: 5}},
    ),
    "written before it exists": (
        "i in range(3)",
        "d[i] = i * i\ne[i] = d[i] + 1",
        {"d": {}, "e": {}},
    ),
    "in and out, lists": (
        "i in range(3)",
        "a[i] += [i]\nout.append(len(a[i]))",
        {"a": [[], [1], [2, 3]], "out": []},
    ),
    "inputs": (
        "i in range(1, 4)",
        "out.append(a[i] + b[i - 1] + c[i + k, :].sum() + d[str(i)])",
        {
            "k": 1,
            "a": range(9),
            "b": (1, 2, 3, 4),
            "c": np.ones((6, 2)),
            "d": {"1": 1, "2": 2, "3": 3},
            "out": [],
        },
    ),
    "an input that is not always there": (
        "i in range(5)",
        """
        if i < len_xs:
            out.append(xs[i])
        try:
            out.append(xs[i])
        except IndexError as error:
            out.append(str(error))
        """,
        {"xs": [1, 2, 3], "len_xs": 3, "out": []},
    ),
    "neighbours": (
        "i in range(1, 4)",
        "b[i] = (a[i - 1] + a[i] + a[i + 1]) / 3",
        {"a": [1.0, 2, 4, 8, 16], "b": [0] * 5},
    ),
    "an index that a comprehension hides": (
        "i in range(3)",
        "out.append([xs[i] for i in range(2)] + [xs[i] * j for j in range(2)])",
        {"xs": [5, 6, 7], "out": []},
    ),
    "one-shot items": (
        "a, b in map(iter, [(1, 2), (3, 4)])",
        "out.append((a, b, xs[a]))",
        {"xs": [0, 1, 2, 3], "out": []},
    ),
    "values of a dict": (
        "k, v in d.items()",
        "out[k] = v + e[k]",
        {"d": {"a": 1, "b": 2}, "e": {"a": 5, "b": 6}, "out": {}},
    ),
    "zip": (
        "x, (y, *z) in zip(xs, ys)",
        "out.append((x, y, z))",
        {"xs": [1, 2], "ys": ["abc", "de"], "out": []},
    ),
    # The body
    "continue": (
        "i in range(9)",
        """
        if i % 2:
            continue
        out.append(i)
        for j in range(2):
            continue
        else:
            if i == 4:
                continue
        out.append(-1)
        """,
        {"out": []},
    ),
    "a loop variable that is assigned again": (
        "x in [' a', 'b ']",
        "x = x.strip()\nx += '!'\nout.append(x)",
        {"out": []},
    ),
    "helpers and imports": (
        "i in range(3)",
        """
        import os.path as p, json
        from collections import OrderedDict as D

        def helper(x, k=2, *rest, scale=1, **more):
            y = x * k
            return y * scale + i + offset

        def fact(n):
            return 1 if n < 2 else n * fact(n - 1)

        add = lambda x, i=5: x + i
        out.append((helper(i), fact(i), add(1), p.basename("/a/b"), json.dumps([i]), len(D())))
        """,
        {"offset": 3, "out": []},
    ),
    "comprehensions and walrus": (
        "i in range(4)",
        """
        if (n := i * 2) > 2:
            out.append([m := j for j in range(n) if (k := j) % 2])
            out.append((m, k))
        out.append({n: v for n, v in enumerate(xs)})
        out.append(sorted({x for x in xs if x > n}))
        out.append(sum(x for y in (xs, xs) for x in y))
        out.append(n)
        """,
        {"xs": [3, 4, 5], "out": []},
    ),
    "with, try and match": (
        "i in range(4)",
        """
        import contextlib, io
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(KeyError):
            print(i)
            {}[1]
        try:
            z = 1 / (i - 2)
        except ZeroDivisionError as error:
            out.append(str(error))
        else:
            out.append(z)
        finally:
            n += 1
        match [i, {"k": i, "l": 2}]:
            case [0, {"k": a, **rest}]:
                out.append((a, rest))
            case [1, *others] as whole if others:
                out.append((len(whole), others))
            case _:
                pass
        out.append(text.getvalue())
        """,
        {"out": [], "n": 0},
    ),
    "an error that is caught": (
        "i in range(4)",
        "try:\n    total += 1 / i\n    d[i] = 1 / i\nexcept ZeroDivisionError:\n    d[i] = 0",
        {"total": 0, "d": {}},
    ),
    "exception groups": (
        "i in range(2)",
        """
        try:
            raise ExceptionGroup("g", [ValueError(i)])
        except* ValueError as group:
            out.append(len(group.exceptions))
        """,
        {"out": []},
    ),
    "classes": (
        "i in range(3)",
        """
        class Base:
            k = i
            j = k + base
            def get(self):
                return self.k + i + base
        class Sub(Base, metaclass=type):
            def get(self):
                return super().get() + self.j
        out.append(Sub().get())
        """,
        {"base": 10, "out": []},
    ),
    "f-strings": (
        "i in range(3)",
        "out.append(f'{i:{width}} {name!r} {i + 1}')",
        {"width": 4, "name": "n", "out": []},
    ),
    "inner loops with their own state": (
        "i in range(3)",
        """
        s, last = 0, None
        for j in range(i + 2):
            if last is not None:
                s += last
            last = j
            if j > 2:
                break
        else:
            s += 100
        while s > 3:
            s -= 3
        out.append(s)
        """,
        {"out": []},
    ),
    "a name that is set where it is read": (
        "i in range(5)",
        "if i > 2:\n    y = i\nif i > 2:\n    out.append(y)",
        {"out": []},
    ),
    "del": ("i in range(2)", "y = [i, i]\ndel y[0]\nout.append(y)\ndel y", {"out": []}),
    "recursion and closures": (
        "i in range(3)",
        """
        def outer():
            n = 0
            def inner():
                nonlocal n
                n += i
                return n
            inner()
            return inner()
        out.append(outer())
        """,
        {"out": []},
    ),
    "coroutines of its own": (
        "i in range(2)",
        """
        import asyncio
        async def wait(x):
            await asyncio.sleep(0)
            return [y async for y in steps(x)]
        async def steps(n):
            for k in range(n):
                yield k
        out.append(asyncio.run(wait(i)))
        """,
        {"out": []},
    ),
    "multi-line texts": ("i in range(2)", 'out.append("""a\n  b\n""" + str(i))', {"out": []}),
    "names like those of the generated function": (
        "_item in range(2)",
        """
        _records = 1
        _operand0 = _value1 = _read = _snapshot = 2
        __records = _records + _operand0
        out.append(__records + _item)
        """,
        {"out": []},
    ),
    "a name like a builtin": ("i in range(3)", "max = 5\nout.append(max + i)", {"out": []}),
    "nothing to loop over": ("i in []", "out.append(i)\ntotal += 1", {"out": [], "total": 5}),
    "a generator": ("x in (y * 2 for y in range(3))", "out.append(x)", {"out": []}),
    "nested targets": (
        "(a, (b, *c)) in pairs",
        "out.append((a, b, c))",
        {"pairs": [(1, (2, 3, 4)), (5, (6,))], "out": []},
    ),
    "an own copy of an item": (
        "d in ds",
        "mine = dict(d)\nmine['k'] = 1\nout.append(mine)\nd = dict(d)\nd['k'] = 2\nout.append(d)",
        {"ds": [{"a": 1}, {"b": 2}], "out": []},
    ),
    # Operands that the iteration changes later
    "a buffer that is used again": (
        "i in range(3)",
        """
        buffer = np.zeros(2)
        for j in range(3):
            buffer[:] = i + j
            total += buffer
            rows[i] = buffer
            seen.append(buffer)
            kept[j] = buffer
            joined.extend(buffer)
            doubled = doubled + buffer
        buffer[:] = -1
        """,
        {
            "total": np.zeros(2),
            "rows": np.zeros((3, 2)),
            "seen": [],
            "kept": {},
            "joined": [],
            "doubled": np.zeros(2),
        },
    ),
    "a tensor that is used again": (
        "i in range(3)",
        "g = torch.ones(2) * i\ntotal += g\nt[i] = g\ng.zero_()",
        {"total": torch.zeros(2), "t": torch.ones(3, 2)},
    ),
    "a list that is used again": (
        "i in range(3)",
        "b = [i]\nxs += b\nys.append(b)\nzs.extend(b)\nb.append(9)\nw[i] = b\nb.append(8)",
        {"xs": [], "ys": [], "zs": [], "w": [0] * 3},
    ),
    "an index that is used again": (
        "i in range(3)",
        "at = np.array([i])\na[at] = i\nat += 9",
        {"a": np.zeros(3)},
    ),
}


@pytest.mark.parametrize("case", EQUAL_TO_THE_PLAIN_LOOP, ids=str)
def test_the_result_is_that_of_the_plain_loop(case: str) -> None:
    header, body, names = EQUAL_TO_THE_PLAIN_LOOP[case]

    assert_equals_the_plain_loop(header, body, **names)
