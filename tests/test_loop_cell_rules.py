"""What `%%parfor` says of a cell before it runs: the header, the classes, the refusals."""

import copy
import math
import textwrap

import numpy as np
import pytest
import torch

from jupyter_mgpu.errors import LoopBodyError, MgpuError
from jupyter_mgpu.loop_cell import classify, explain, parse_header


class Point:
    def __init__(self):
        self.x = 0


class Loader:
    """Makes its items, as a loader of batches does."""

    def __getitem__(self, index):
        return {"x": index}


def kernel(**names):
    return {"__name__": "__main__", "math": math, "np": np, "copy": copy, **names}


def classified(header, body, **names):
    return classify(header, textwrap.dedent(body), namespace=kernel(**names))


def classes(header, body, **names):
    loop = classified(header, body, **names)
    return {variable.name: str(variable.kind) for variable in loop.variables}


def note(header, body, name, **names):
    loop = classified(header, body, **names)
    return next(variable.note for variable in loop.variables if variable.name == name)


# The header


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("i in range(100)", ("i",)),
        ("i, x in enumerate(xs)", ("i", "x")),
        ("(a, (b, c)) in pairs", ("a", "b", "c")),
        ("[a, *rest] in rows", ("a", "rest")),
        ("x in xs", ("x",)),
        ("x in [y for y in xs if y in ys]", ("x",)),
        ("  for i in range(3):  ", ("i",)),
        ("_, x in xs", ("_", "x")),
    ],
)
def test_a_header_binds_its_loop_variables(text: str, names: tuple[str, ...]) -> None:
    assert parse_header(text).names == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "was given no loop"),
        ("for", "'for', which is no loop header"),
        ("i = 1:10", "'i = 1:10', which is no loop header"),
        ("range(10)", "which is no loop header"),
        ("i in range(10", "which is no loop header"),
        ("i in xs: print(1)", "which is no loop header"),
        ("i in xs\nfor j in ys", "which is no loop header"),
        ("1 in xs", "which is no loop header"),
        ("a[0] in xs", "assign to names only"),
        ("a.b, c in xs", "assign to names only"),
        ("i in (n := 5, 6)", "does more than to name what is looped over"),
        ("i in xs\x00", "which is no loop header"),
    ],
)
def test_what_is_no_header_is_refused_with_an_example(text: str, said: str) -> None:
    with pytest.raises(LoopBodyError) as caught:
        parse_header(text)

    assert said in str(caught.value)
    assert caught.value.lineno == 1
    assert isinstance(caught.value, MgpuError)


# The classes


def test_every_name_has_its_class_with_the_lines_of_the_cell() -> None:
    body = """
        x = a[i] * scale
        if x > best_so_far:
            out[i] = x
        total += f(x)
        best = max(best, x)
        log.append(x)
    """
    names = {"a": [1], "scale": 2, "best_so_far": 1, "out": [0], "total": 0, "f": abs}

    loop = classified("i in range(n)", body.lstrip("\n"), **names, best=0, log=[], n=1)

    assert [(v.name, v.kind.value, v.lines) for v in loop.variables] == [
        ("i", "loop", (1, 2, 4)),
        ("a", "sliced input", (2,)),
        ("out", "sliced output", (4,)),
        ("total", "reduction", (5,)),
        ("best", "reduction", (6,)),
        ("log", "reduction", (7,)),
        ("scale", "broadcast", (2,)),
        ("best_so_far", "broadcast", (3,)),
        ("f", "broadcast", (5,)),
        ("x", "temporary", (2, 3, 4, 5, 6, 7)),
    ]


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [
        ("i in range(3)", "a[i] = a[i] + 1", {"a": "sliced input and output"}),
        ("i in range(3)", "a[i, :] = a[i, :] + k", {"a": "sliced input and output"}),
        ("i in range(3)", "y = a[i] + a[i + 1]", {"a": "broadcast", "y": "temporary"}),
        ("i in range(3)", "y = a[i + k] + a[i + k]", {"a": "sliced input"}),
        ("i in range(3)", "y = a[2 * i]", {"a": "broadcast"}),
        ("i in range(3)", "y = a[k - i]", {"a": "broadcast"}),
        ("i in range(3)", "y = a[i][0]", {"a": "sliced input"}),
        ("i in range(3)", "y = a[i, i]", {"a": "broadcast"}),
        ("i in range(3)", "y = len(a) + a[i]", {"a": "broadcast"}),
        ("i in range(3)", "i = i + 1\ny = a[i]", {"a": "broadcast", "i": "loop"}),
        ("i in range(3)", "y = lambda: a[i]", {"a": "broadcast"}),
        ("i in range(3)", "j = i\ny = a[j]", {"a": "broadcast"}),
        ("i in range(3)", "y = loader[i]", {"loader": "broadcast"}),
        ("i in range(3)", "y = weights[i]", {"weights": "broadcast"}),
        ("i in range(3)", "a[k * i] = 1\na[i] += 1", {"a": "reduction"}),
        ("p in pairs", "d[p] = 1", {"d": "sliced output"}),
        ("x in a", "y = [x for x in a]", {"a": "broadcast", "x": "loop"}),
        (
            "i in range(3)",
            """
            def f():
                class C:
                    k = 1
                    def get(self):
                        return k
                return C
         """,
            {"k": "broadcast", "f": "temporary"},
        ),
        ("i in range(3)", "y = print(i) or math.pi", {"math": "broadcast"}),
    ],
)
def test_slices_follow_the_rules_of_parfor(header, body, expected) -> None:
    names = {"a": np.zeros((9, 9)), "k": 1, "d": {}, "pairs": [1], "loader": Loader()}
    weights = torch.ones(3, requires_grad=True)

    found = classes(header, body, **names, weights=weights)

    assert {name: found[name] for name in expected} == expected
    assert "print" not in found


def test_without_the_kernel_s_names_only_the_text_counts() -> None:
    loop = classify("i in range(3)", "out[i] = f(a[i])\ntotal += 1")

    assert {v.name: v.kind.value for v in loop.variables} == {
        "i": "loop",
        "a": "sliced input",
        "out": "sliced output",
        "total": "reduction",
        "f": "broadcast",
    }


@pytest.mark.parametrize(
    ("body", "name", "said"),
    [
        ("y = i", "y", "the kernel's y is neither seen nor changed"),
        ("if i:\n    z = i\nprint(z)", "z", "may be unset where it is read"),
        ("while i:\n    z = i\n    break\nprint(z)", "z", "may be unset"),
        ("try:\n    z = i\nexcept ValueError:\n    pass\nprint(z)", "z", "may be unset"),
        ("match i:\n    case 1:\n        z = i\nprint(z)", "z", "may be unset"),
        ("i and (z := i)\nprint(z)", "z", "may be unset"),
        ("print(nowhere)", "nowhere", "not defined in the kernel"),
        ("print(rank)", "rank", "the engine's own"),
        ("point.move(i)", "point", "what .move() changes stays on the engine"),
        ("t = point\nt.move(i)", "t", "what .move() changes stays on the engine"),
        ("row = a[i]\nrow += 1", "row", "if it is an array, 'row += 1' changes the engine's copy"),
        ("i += 1", "i", "assigned again in the body"),
        ("good = good and i", "good", "the other side is evaluated in every iteration"),
        ("good = max(good, i)", "good", "max runs in the kernel"),
        ("a[i] = 1\na[i + 1] = 2", "a", "written in loop order: a[i], a[i + 1]"),
        ("a[i] = a[i] + 1", "a", "a[i] travels with each item and comes back"),
    ],
)
def test_a_note_says_what_is_to_be_known(body: str, name: str, said: str) -> None:
    names = {"y": 0, "point": Point(), "a": [[0]], "good": 1}

    assert said in note("i in range(1)", body, name, **names)


@pytest.mark.parametrize(
    "body",
    [
        "if i:\n    z = 1\nelse:\n    z = 2\nprint(z)",
        "try:\n    z = i\nexcept ValueError:\n    z = 1\nprint(z)",
        "try:\n    z = i\nexcept ValueError:\n    raise\nprint(z)",
        "if i:\n    z = 1\nelse:\n    continue\nprint(z)",
        "match i:\n    case 1:\n        z = 1\n    case _:\n        z = 2\nprint(z)",
        "with open(i) as z:\n    pass\nprint(z)",
        "for z in range(i):\n    print(z)",
        "z = [z for z in range(i)]\nprint(z)",
    ],
)
def test_what_every_branch_sets_is_set(body: str) -> None:
    assert note("i in range(1)", body, "z") == ""


def test_the_explanation_is_a_table() -> None:
    loop = classified(
        "i in range(2)", "y = i * k\nout[i] = y\ntotal += y", k=2, out=[0, 0], total=0
    )

    assert explain(loop) == textwrap.dedent("""\
        %%parfor i in range(2)
        name   class          lines  note
        i      loop           1,2,3
        out    sliced output  3      written in loop order: out[i]
        total  reduction      4      + in loop order
        k      broadcast      2
        y      temporary      2,3,4""")


# The refusals: (body, line of the cell, what is said); the header is `i, x in enumerate(xs)`

REFUSED = [
    # Dependence between iterations
    ("y = z\nz = i", 2, "`z` is read on line 2 before the iteration assigns it (line 3)"),
    ("print(z)\nif i:\n    z = 1", 2, "before the iteration assigns it"),
    ("z += 1\nz = 0", 2, "`z` is read on line 2 before"),
    ("if x > best:\n    best = x", 2, "best = max(best, e)"),
    ("best = x if x > best else best", 2, "`best` is read on line 2 before"),
    ("z = z * z", 2, "`z` is read on line 2 before"),
    ("z = step(z)", 2, "`z` is read on line 2 before"),
    ("a, z = z, a", 2, "is read on line 2 before"),
    ("z = [z for _ in xs]", 2, "is read on line 2 before"),
    ("a[i] = a[i - 1] + 1", 2, "`a[i - 1]` is read on line 2 while other iterations write `a`"),
    ("a[i] = 1\ny = a[i + 1]", 3, "`a[i + 1]` is read on line 3 while other iterations write"),
    ("a[i + 1] = a[i]", 2, "other iterations write `a` (line 2)"),
    ("a[i] = i\ny = len(a)", 3, "such as len(a), read before the loop"),
    ("a[i] = i\ndef f():\n    return a[i]", 4, "`a` is read on line 4"),
    ("a[x] = a[x] + 1", 2, "`a[x]` is read"),
    ("a[i, 0] = a[i, 1]", 2, "`a[i, 1]` is read"),
    ("a[i][0] = a[i]", 2, "`a[i]` is read"),
    ("a[i] += a[0]", 2, "`a[0]` is read"),
    ("total += i\nprint(total)", 3, "is read on line 3, where its value depends on which"),
    ("total += total * i", 2, "`total` collects the results"),
    ("total += i\nout = lambda: total", 3, "`total` collects the results"),
    ("total += i\nout = f'{total}'", 3, "`total` collects the results"),
    (
        "if i not in log:\n    log.append(i)",
        2,
        "`log` collects the results of all iterations (line 3)",
    ),
    ("log.append(len(log))", 2, "`log` collects the results"),
    ("total += i\ntotal[0] += 1\ny = total", 4, "`total` collects the results"),
    # Leaving the loop
    ("if i:\n    break", 3, "Use continue to end one iteration"),
    ("for j in xs:\n    pass\nelse:\n    break", 5, "break ends the loop"),
    ("return i", 2, "return is not possible"),
    ("yield i", 2, "yield is not possible"),
    ("y = yield from xs", 2, "yield is not possible"),
    ("await f()", 2, "cannot await"),
    ("async with f:\n    pass", 2, "cannot await"),
    ("async for j in f:\n    pass", 2, "cannot await"),
    ("y = [j async for j in f]", 2, "cannot await"),
    # Names that cannot be known
    ("global total\ntotal = 1", 2, "`global total` names variables of the kernel"),
    ("def f():\n    global total\n    total = 1", 3, "`global total`"),
    ("from math import *", 2, "`from math import *` binds names that cannot be known"),
    ("exec('y = 1')", 2, "exec() reaches names"),
    ("y = eval('i')", 2, "eval() reaches names"),
    ("y = locals()['i']", 2, "locals() reaches names"),
    ("y = [globals() for _ in xs]", 2, "globals() reaches names"),
    ("y = vars()", 2, "vars() reaches names"),
    ("get_ipython().run_line_magic('time', 'y = i')", 2, "A magic in a loop body"),
    # Changes that would be lost
    ("del k", 2, "`del k` would delete a name of the kernel"),
    ("del a[i]", 2, "`a[i]` is deleted"),
    ("point.x = i", 2, "`point.x` is assigned, but the engine has a copy of `point`"),
    ("point.x += i", 2, "`point.x` is changed"),
    ("del point.x", 2, "`point.x` is deleted"),
    ("y, point.x = i, i", 2, "`point.x` is assigned"),
    ("a[i].x = i", 2, "`a[i].x` is assigned"),
    ("a[0] = i", 2, "`a[0]` is the same place in every iteration"),
    ("a[:] = i", 2, "the same place in every iteration"),
    ("a[k] = i", 2, "the same place in every iteration"),
    ("y = point\ny.x = i", 3, "`y` is a part of `point`"),
    ("y = point.x\ny[0] = i", 3, "`y` is a part of `point`"),
    ("y = a[i]\ny[0] = i", 3, "`y` is a part of `a`"),
    ("y = z = a[i]\nz[0] = i", 3, "`z` is a part of `a`"),
    ("for y in a:\n    y[0] = i", 3, "`y` is a part of `a`"),
    ("if i:\n    y = a[i]\nelse:\n    y = []\ny[0] += 1", 6, "`y` is a part of `a`"),
    ("x[0] = i", 2, "`x` is a part of `xs`"),
    ("x.y = i", 2, "`x` is a part of `xs`"),
    ("def f():\n    a[0] = i", 3, "`a[0]` is changed by a function of the body"),
    ("def f():\n    log.append(i)", 3, "`log.append()` changes `log` of the kernel"),
    ("y = [log.append(j) for j in xs]", 2, "`log.append()` changes `log`"),
    ("y = log.pop()", 2, "`log.pop()` changes `log`"),
    ("log.sort()", 2, "`log.sort()` changes `log`"),
    ("class C:\n    a[i] = 1", 3, "is possible in an assignment of the loop's body only"),
    ("for a[i] in xs:\n    pass", 2, "is possible in an assignment of the loop's body only"),
    ("with f as a[i]:\n    pass", 2, "is possible in an assignment of the loop's body only"),
    # What is looped over
    ("xs = []", 2, "`xs` is changed in the body, but the loop reads `xs` while it runs"),
    ("xs.append(i)", 2, "the loop reads `xs` while it runs"),
    ("xs[i + 1] = i", 2, "the loop reads `xs` while it runs"),
    ("xs[x] = i", 2, "the loop reads `xs` while it runs"),
    # What the kernel cannot replay
    ("new[i] = i", 2, "the kernel has no `new`. Create it in a cell before"),
    ("new += i", 2, "the kernel has no `new`"),
    ("f = max\ntotal = f(total, i)", 3, "folded in the kernel, after the iteration, by `f`"),
    ("try:\n    d[i].append(i)\nexcept KeyError:\n    d[i] = [i]", 3, "within try"),
    ("try:\n    d[i] += 1\nexcept KeyError:\n    d[i] = 1", 3, "within try"),
    ("j, a[j] = i, i", 2, "The index of `a[j]` is assigned by the same statement"),
    # A scope that a function changes
    ("k2 = i\nclass C:\n    k2 = k2", 4, "The class reads `k2` of the iteration"),
    # Nothing
    ("# nothing", 1, "The cell has no loop body"),
]


@pytest.mark.parametrize(("body", "line", "said"), REFUSED, ids=[body for body, *_ in REFUSED])
def test_a_cell_that_is_no_independent_loop_is_refused_at_its_line(body, line, said) -> None:
    names = {
        "a": [[0]] * 3, "d": {}, "k": 1, "log": [], "point": Point(), "total": 0, "xs": [[0]],
        "f": abs, "step": abs, "best": 0, "z": 0,
    }  # fmt: skip

    with pytest.raises(LoopBodyError) as caught:
        classified("i, x in enumerate(xs)", body, **names)

    assert said in caught.value.msg
    assert caught.value.lineno == line
    assert caught.value.text == ["%%parfor i, x in enumerate(xs)", *body.split("\n")][line - 1]


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("i in range(n)", "n += i"),
        ("k in d", "d[k] = 1"),
        ("x in reversed(xs)", "xs.append(x)"),
        ("k, v in d.items()", "d[k] = v + 1"),
        ("i, x in enumerate(xs, 1)", "xs[i] = x"),
        ("x in xs", "xs = [x]"),
    ],
)
def test_what_is_looped_over_stays_as_it_is(header: str, body: str) -> None:
    with pytest.raises(LoopBodyError, match="is changed in the body, but the loop"):
        classified(header, body, n=3, d={1: 1}, xs=[1])


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("batch in loader", "batch['x'] = 1"),  # made for the iteration
        ("i in range(3)", "item = loader[i]\nitem['x'] = 2"),
        ("i in range(3)", "y = copy.copy(a[i])\ny[0] = 1"),
        ("i in range(3)", "y = a[i]\ny = list(y)\ny[0] = 1"),
        ("i in range(3)", "y = {}\ny[0] = 1\ny.update(b=2)\nz = y\nz[1] = 2"),
        ("i in range(3)", "def f(a, k=1):\n    a[0] = k\n    a.append(1)\nf([0])"),
        ("i in range(3)", "out.append([a[0] for a in ([1], [2])])"),
        ("i in range(3)", "model.eval()\nout.append(model(i))"),
        ("i in range(3)", "np.add(a, 1)\nnp.add(a, i)"),  # a module's function, no set's method
        ("i in range(3)", "y = vars(model)"),
        ("i in range(3)", "class C:\n    y = 1\n    z = y"),
        ("i in range(3)", "for j in (1, 2):\n    if j > 1:\n        z = before\n    before = j"),
    ],
)
def test_what_an_iteration_may_do_is_not_refused(header: str, body: str) -> None:
    names = {"loader": Loader(), "a": [[0]] * 3, "out": [], "model": Point()}

    assert classes(header, body, **names)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("i in range(1, 3)", "new[i] = old[i - 1]"),
        ("i in range(3)", "y = old[0]\nnew += i"),
        ("i in range(3)", "new[i % 2] += old[i]"),
        ("x in old", "new[int(x)] = x"),
    ],
)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (lambda: [0] * 3, lambda old: old),
        (lambda: np.zeros(3), lambda old: old[:]),
        (lambda: np.zeros(3), lambda old: old[::-1]),
        (lambda: torch.zeros(3), lambda old: old.view(3, 1)),
    ],
)
def test_a_change_of_what_is_read_by_another_name_is_refused(header, body, old, new) -> None:
    source = old()

    with pytest.raises(LoopBodyError, match="`new` is changed in the body, but it is the same"):
        classified(header, body, old=source, new=new(source))


def test_names_that_share_nothing_are_independent() -> None:
    both = np.zeros((3, 2))
    names = {"x": both[:, 0], "y": both[:, 1], "n": 0, "total": 0, "a": [], "b": []}

    assert classes("i in range(3)", "y[i] = x[i]\ntotal += n\na.append(b[i])", **names)


def test_a_cell_that_is_no_python_keeps_its_own_error() -> None:
    with pytest.raises(SyntaxError) as caught:
        classified("i in range(3)", "x = 1\ny = = 2")

    assert not isinstance(caught.value, LoopBodyError)
    assert caught.value.lineno == 3


def test_the_error_points_into_a_line_with_wide_characters() -> None:
    with pytest.raises(LoopBodyError) as caught:
        classified("i in range(3)", "y = 'ÄÖ'; total += i; print(total)", total=0)

    error = caught.value
    assert error.text is not None
    assert error.offset is not None
    assert error.end_offset is not None
    assert error.text[error.offset - 1 : error.end_offset - 1] == "total"


def test_the_shell_s_transformation_keeps_the_lines() -> None:
    def transform(source: str) -> str:
        """As IPython: no empty lines at the start, no indentation, no shell commands."""
        return textwrap.dedent(source.lstrip("\n")).replace("!ls", "get_ipython().system('ls')")

    with pytest.raises(LoopBodyError) as caught:
        classify("i in range(3)", "\n\n    !ls\n    break\n", transform=transform)

    assert caught.value.lineno == 5
    assert caught.value.text == "break"
