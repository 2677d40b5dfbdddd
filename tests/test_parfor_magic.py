"""`%%parfor` in a real notebook: a cell as the body of a loop on all engines."""

import re

import pytest

from notebooks import Notebook, notebook

MOVED = "str([engine.moved for engine in mgpu.current_pool().status().engines])"
FAILING = """%%parfor i in range(8)

import time
time.sleep(0.01)
if i == 5:
    raise ValueError("five")
total += i
squares[i] = i * i
"""
SEEDED = """
import random
import numpy as np
import torch
numbers = t = torch.zeros(6, 3, dtype=torch.float64)
"""


# --- what a loop gives --------------------------------------------------------------------


@pytest.mark.oldest
def test_slices_of_lists_dicts_arrays_and_tensors_are_written_in_place(nb: Notebook) -> None:
    nb.check("""
import numpy as np
import torch
listed, named, array, tensor = [None] * 6, {}, np.zeros((6, 2)), torch.zeros(6)
before = [listed, named, array, tensor]
""")

    nb.check("""%%parfor i in range(6)
listed[i] = str(i)
named["key", i] = i
array[i, 1] = i / 2
tensor[i] = torch.tensor(float(i)).sqrt()
""")

    assert nb.value("listed") == ["0", "1", "2", "3", "4", "5"]
    assert nb.value("named") == {("key", i): i for i in range(6)}
    assert nb.value("array.tolist()") == [[0, i / 2] for i in range(6)]
    assert nb.value("torch.equal(tensor, torch.arange(6.0).sqrt())")
    assert nb.value("all(a is b for a, b in zip(before, [listed, named, array, tensor]))")


def test_reductions_give_what_the_plain_loop_gives(nb: Notebook) -> None:
    nb.check("""
import operator
total, product, best, words, text, seen, folded = 0.1, 1, 0, [], "", set(), 100
""")

    nb.check("""%%parfor i in range(1, 8) --chunk 2
total += i / 3
product *= i
best = max(best, (i * 5) % 7)
words.append(f"w{i}")
text = text + str(i)
seen.update({i % 3})
folded = operator.sub(folded, i)
""")

    plain = 0.1
    for i in range(1, 8):
        plain += i / 3
    assert nb.value("[total, product, best, text, seen, folded]") == [
        *(plain, 5040, 6, "1234567", {0, 1, 2}, 72)
    ]
    assert nb.value("words") == [f"w{i}" for i in range(1, 8)]


def test_names_that_the_cell_assigns_do_not_appear_in_the_kernel(nb: Notebook) -> None:
    nb.check("halves, kept = [], 'mine'")

    nb.check("%%parfor item in range(3)\nhalf = item / 2\nkept = half\nhalves.append(kept)")

    assert nb.value("halves") == [0, 0.5, 1]
    assert nb.value("kept") == "mine"
    assert nb.value("[name in globals() for name in ('half', 'item')]") == [False, False]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("i, x in enumerate('abc')", [(0, "a"), (1, "b"), (2, "c")]),
        ("i, x in enumerate((c for c in 'ab'), start=4)", [(4, "a"), (5, "b")]),
        ("i, x in {1: '--seed', 2: ' --y'}.items()", [(1, "--seed"), (2, " --y")]),
        ("i, (x, *_) in zip(range(2), ['ab', 'cd'])", [(0, "a"), (1, "c")]),
        ("i, x in [('#', 1)] --seed 1  # --chunk 0", [("#", 1)]),
        ("for i, x in pairs():", [(0, "p"), (1, "q")]),
        ("--workers 1 i, x in [(7, 'z')] --seed=1 --chunk 3", [(7, "z")]),
        ("i, x in []", []),
    ],
)
def test_headers_are_those_of_python(nb: Notebook, header: str, expected: list) -> None:
    nb.check("pairs_seen = []\ndef pairs():\n    yield 0, 'p'\n    yield 1, 'q'")

    nb.check(f"%%parfor {header}\npairs_seen.append((i, x))")

    assert nb.value("pairs_seen") == expected


def test_helpers_of_other_cells_are_used_in_their_newest_version(nb: Notebook) -> None:
    cell = "%%parfor i in range(3)\nscaled.append(helper(i))"
    nb.check("import math\nfactor = 2\ndef helper(value):\n    return math.floor(value * factor)")
    nb.check("scaled = []")
    nb.check(cell)
    assert nb.value("scaled") == [0, 2, 4]

    nb.check("factor = 3")
    nb.check(cell)
    nb.check("def helper(value):\n    return -value")
    nb.check(cell)

    assert nb.value("scaled") == [0, 2, 4, 0, 3, 6, 0, -1, -2]


def test_a_body_may_import_define_functions_and_use_the_shell(nb: Notebook) -> None:
    nb.check("lines = []")

    nb.check("""%%parfor i in range(2)
from textwrap import indent
def shown(value):
    return indent(value, "  " * i)
echoed = !echo number {i}
lines.append(shown(echoed[0]))
""")

    assert nb.value("lines") == ["number 0", "  number 1"]


def test_random_numbers_depend_on_the_seed_and_not_on_the_engines(nb: Notebook) -> None:
    nb.check(SEEDED, timeout=120)
    seen = []
    for options in ("", "--workers 1", "--workers 0", "--chunk 1"):
        nb.check(f"""%%parfor i in range(6) --seed 7 {options}
drawn = [random.random(), np.random.rand(), float(torch.rand(()))]
numbers[i] = torch.tensor(drawn, dtype=torch.float64)
""")
        seen.append(nb.value("numbers.tolist()"))

    assert seen == [seen[0]] * 4
    assert len({number for row in seen[0] for number in row}) == 18


def test_an_spmd_cell_gets_what_a_loop_has_changed(nb: Notebook) -> None:
    nb.check("count, log = 0, []")
    nb.check("%%spmd\ncount, log")

    nb.check("%%parfor i in range(4)\ncount += i\nlog.append(i)")

    assert "ranks 0-1: (6, [0, 1, 2, 3])" in nb.check("%%spmd\ncount, log").text


def test_a_loop_within_a_body_runs_in_place(nb: Notebook) -> None:
    nb.check("import os\npids = []")

    nb.check("""%%parfor i in range(2)
inner = mgpu.parfor(lambda _: os.getpid(), range(3))
pids.append((os.getpid(), inner))
""")

    assert nb.value("all(inner == [pid] * 3 for pid, inner in pids)")


# --- what people see ----------------------------------------------------------------------


def test_the_bar_has_the_header_and_lanes_have_what_iterations_print(nb: Notebook) -> None:
    nb.check("import time")

    cell = nb.check("%%parfor i in range(30) --chunk 1\ntime.sleep(0.04)\nprint('at', i)")

    assert "parfor i in range(30): 100% 30 items" in cell.text
    for rank in (0, 1):
        assert f"[{rank}] at " in cell.text
    assert cell.result == ""


def test_a_large_broadcast_is_told_with_its_size(nb: Notebook) -> None:
    nb.check("import numpy as np\nlarge, small, sums = np.ones(8_000_000), np.ones(10), []")

    told = nb.check("%%parfor i in range(2)\nsums.append(large.sum() + small.sum() + i)")
    silent = nb.check("%%parfor i in range(2)\nsums.append(small.sum())")

    assert "sends large (64 MB) to the engines, once per host" in told.text
    assert "sends" not in silent.text  # a bar may be there where the machine is busy
    assert nb.value("[int(each) for each in sums]") == [8_000_010, 8_000_011, 10, 10]


def test_explain_shows_the_classes_and_runs_nothing(nb: Notebook) -> None:
    nb.check("out, total, scale = {}, 0, 2")
    body = "half = i / scale\nout[i] = half\ntotal += half"

    cell = nb.check(f"%%parfor i in range(1 / 0) --explain\n{body}")

    rows = [line.split()[:2] for line in cell.stdout.splitlines()[2:]]
    assert dict(rows) == {
        "i": "loop",
        "out": "sliced",
        "total": "reduction",
        "scale": "broadcast",
        "half": "temporary",
    }
    assert nb.value("(out, total)") == ({}, 0)


def test_without_workers_a_loop_runs_in_the_kernel_where_it_can_be_debugged() -> None:
    with notebook() as fresh:
        fresh.check(
            "%load_ext jupyter_mgpu\nimport sys, jupyter_mgpu as mgpu\nstops, total = [], 0"
        )
        fresh.check(
            "def stop():\n"
            "    frame = sys._getframe(1)\n"
            "    stops.append((frame.f_lineno, frame.f_locals['i']))\n"
            "sys.breakpointhook = stop"
        )

        fresh.check("%%parfor i in range(3) --workers 0\n\nif i:\n    breakpoint()\ntotal += i")

        assert fresh.value("stops") == [(4, 1), (4, 2)]
        assert fresh.value("(total, mgpu.current_pool())") == (3, None)


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "line", "shown", "message"),
    [
        ("x = 1\n\nbreak", 4, "break", "break ends the loop"),
        ("\nsteps.append(len(steps))", 3, "steps.append(len(steps))", "is read on line 3"),
        ("out[0] = i", 2, "out[0] = i", "the same place in every iteration"),
        ("y = z\nz = i", 2, "y = z", "before the iteration assigns it (line 3)"),
        ("unknown += i", 2, "unknown += i", "the kernel has no `unknown`"),
        ("%%parfor j in range(2)\nsteps.append(j)", 2, "get_ipython()", "A magic"),
    ],
)
def test_what_is_no_loop_is_refused_with_its_line_before_anything_runs(
    nb: Notebook, body: str, line: int, shown: str, message: str
) -> None:
    nb.check("steps, out, ran = [], [0], []\ndef items():\n    ran.append(1)\n    return range(3)")
    sent = nb.value(MOVED)

    cell = nb.run(f"%%parfor i in items()\n{body}")

    assert cell.ename == "LoopBodyError"
    assert f", line {line}\n    {shown}" in cell.traceback
    assert message in cell.traceback
    assert "run_code" not in cell.traceback  # the frames that led to it say nothing
    assert "jupyter_mgpu/" not in cell.traceback
    assert nb.value("ran") == []
    assert nb.value(MOVED) == sent


def test_a_refusal_starts_no_pool() -> None:
    with notebook() as fresh:
        fresh.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu")

        for cell in ("%%parfor i in range(3)\nbreak", "%%parfor i in 3\npass", "%%parfor\npass"):
            assert not fresh.run(cell).ok

        assert fresh.value("mgpu.current_pool()") is None


def test_indexes_that_may_meet_are_refused_with_their_line(nb: Notebook) -> None:
    nb.check("ring = [1, 2, 3, 4]")

    cell = nb.run("%%parfor i in range(-1, 3)\n\nring[i] = ring[i] + 1")

    assert cell.ename == "LoopBodyError"
    assert ", line 3\n    ring[i] = ring[i] + 1" in cell.traceback
    assert nb.value("ring") == [1, 2, 3, 4]


def test_a_syntax_error_is_shown_with_its_line_alone(nb: Notebook) -> None:
    cell = nb.run("%%parfor i in range(3)\n\nif i\n    pass")

    assert cell.ename == "SyntaxError"
    assert ", line 3\n    if i\n        ^\n" in cell.traceback
    assert "File" not in cell.traceback


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("i in range(3) --chunk 0", "chunk=0 was given; it must be 1 or more"),
        ("i in range(3) --seed x", "invalid int value: 'x'"),
        ("i in range(3) --sed 1", "unrecognized arguments: --sed 1"),
        ("i in range(3) --pool other", "The pool 'other' was asked for"),
    ],
)
def test_wrong_options_are_told_in_one_line(nb: Notebook, line: str, message: str) -> None:
    cell = nb.run(f"%%parfor {line}\npass")

    assert cell.ename == "UsageError"
    assert message in cell.evalue


def test_what_cannot_be_sent_is_named(nb: Notebook) -> None:
    nb.check("import threading\nlock, done = threading.Lock(), []")

    cell = nb.run("%%parfor i in range(3)\nwith lock:\n    done.append(i)")

    assert cell.ename == "PackingError"
    assert "lock: cannot pickle" in cell.traceback
    assert nb.value("done") == []


# --- errors, Stop, deaths -----------------------------------------------------------------


@pytest.mark.parametrize("options", ["", " --workers 0"])
def test_an_error_shows_line_and_item_and_leaves_the_names_as_they_were(
    nb: Notebook, options: str
) -> None:
    nb.check("total, squares = 0, [None] * 8")

    cell = nb.run(FAILING.replace("\n", f"{options}\n", 1))

    assert cell.ename == "ValueError"
    assert ', line 6, in parfor_iteration\n    raise ValueError("five")' in cell.traceback
    assert "in item 5 of the loop: 5" in cell.traceback
    assert ("on rank" in cell.traceback) == (not options)
    assert "jupyter_mgpu/" not in cell.traceback
    assert nb.value("(total, squares)") == (0, [None] * 8)
    nb.check("import sys\nkept = sys.last_value.results")
    finished = nb.value("dict(kept['squares'])")
    assert finished
    if options:  # else 5 may fail while another engine still runs one of them
        assert finished.keys() == {0, 1, 2, 3, 4}
    assert 5 not in finished
    assert finished == {i: i * i for i in finished}
    assert nb.value("kept['total']") == sum(finished)


def test_a_change_that_fails_in_the_kernel_shows_its_line_and_loses_nothing(nb: Notebook) -> None:
    nb.check("short = [0, 0]")

    cell = nb.run("%%parfor i in range(4)\n\nshort[i] = i + 1")

    assert cell.ename == "IndexError"
    assert "line 3" in cell.traceback
    assert "short[i] = i + 1" in cell.traceback
    assert "jupyter_mgpu/" not in cell.traceback
    kept = "__import__('sys').last_value.results"
    assert nb.value(kept) == {"short": [(0, 1), (1, 2), (2, 3), (3, 4)]}


def test_an_error_of_the_iterable_shows_its_lines(nb: Notebook) -> None:
    nb.check("def broken():\n    yield 1\n    raise KeyError('gone')\nread = []")

    cell = nb.run("%%parfor x in broken()\nread.append(x)")

    assert cell.ename == "KeyError"
    assert "raise KeyError('gone')" in cell.traceback
    assert "jupyter_mgpu/" not in cell.traceback
    assert nb.value("read") == []


@pytest.mark.parametrize("options", ["", "--workers 0"])
def test_a_stop_leaves_the_names_as_they_were(nb: Notebook, options: str) -> None:
    nb.check("import time\ntotal, found = 100, []")
    cell = nb.submit(
        f"%%parfor i in range(10_000) {options}\ntime.sleep(0.05)\ntotal += 1\nfound.append(i)"
    )
    nb.wait_for(cell, lambda: re.search(r"([2-9]|\d\d) of 10,000 items", cell.text) is not None)

    nb.stop()
    nb.wait(cell)

    assert cell.ename == "KeyboardInterrupt"
    assert nb.value("(total, found)") == (100, [])
    nb.check("import sys\nkept = sys.last_value.results")
    assert nb.value("len(kept['found']) == kept['total'] - 100 >= 2")
    nb.check("%%parfor i in range(3)\ntotal += 1")
    assert nb.value("total") == 103


def test_an_engine_runs_a_loop_itself(nb: Notebook) -> None:
    nb.check("%%spmd\n%load_ext jupyter_mgpu\nmine = rank")

    cell = nb.check(
        "%%spmd\nget_ipython().run_cell_magic('parfor', 'i in range(3)', 'mine += 10')\nmine"
    )

    assert "rank 0 (CPU): 30" in cell.text
    assert "rank 1 (CPU): 31" in cell.text


def test_the_item_is_named_on_which_an_engine_died(nb: Notebook) -> None:
    nb.check("import os, signal\nalive = []")

    cell = nb.run(
        "%%parfor i in range(6)\n"
        "if i == 4:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "alive.append(i)"
    )

    assert cell.ename == "EngineDiedError"
    assert "SIGKILL" in cell.traceback
    assert "in item 4 of the loop: 4" in cell.traceback
    assert nb.value("alive") == []
    nb.check("%%parfor i in range(6)\nalive.append(i)")
    assert nb.value("alive") == list(range(6))
