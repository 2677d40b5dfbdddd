"""Failure records: everything a traceback shows, bounded, whatever the exception does."""

import json
import linecache
from typing import Any

import pytest

from jupyter_mgpu.on_engine import failure
from jupyter_mgpu.on_engine.failure import describe


def raised(function: Any, *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        return error
    raise AssertionError("nothing was raised")


def run_source(source: str, name: str = "<cell>") -> None:
    exec(compile(source, name, "exec"), {})


def test_a_record_has_type_text_frames_and_notes_as_plain_json() -> None:
    def fails() -> None:
        error = ValueError("no")
        error.add_note("look here")
        raise error

    record = describe(raised(fails))

    assert json.loads(json.dumps(record)) == record
    assert (record["ename"], record["module"], record["evalue"]) == ("ValueError", "builtins", "no")
    assert record["notes"] == ["look here"]
    assert record["frames"][-1]["name"] == "fails"
    assert record["frames"][-1]["text"].strip() == "raise error"
    assert record["where"] == f"test_failure.py, line {record['frames'][-1]['line']}, in fails"


def test_a_line_that_the_engine_does_not_have_is_left_open() -> None:
    record = describe(raised(run_source, "1 / 0", "ipykernel_1/2.py"))

    assert record["frames"][-1]["text"] is None
    assert record["where"] == "2.py, line 1"


def test_notebook_cells_are_named_as_the_shell_names_them() -> None:
    failure.name_cells(lambda file: ("Cell", "In[3]") if file == "<cell>" else None)
    try:
        record = describe(raised(run_source, "\n\n1 / 0"))
    finally:
        failure.name_cells(None)

    assert record["frames"][-1]["label"] == "Cell In[3]"
    assert record["where"] == "Cell In[3], line 3"


def test_frames_of_this_package_are_left_out() -> None:
    from jupyter_mgpu.devices import parse_gpus

    record = describe(raised(parse_gpus, "nonsense"))

    assert [f["name"] for f in record["frames"]] == ["raised"]


def test_causes_and_contexts_are_described_and_cycles_end() -> None:
    source = """
try:
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise KeyError("a") from error
except KeyError:
    raise ValueError("b")
"""
    error = raised(run_source, source)
    cyclic = ValueError("x")
    cyclic.__cause__ = KeyError("y")
    cyclic.__cause__.__cause__ = cyclic

    record = describe(error)

    assert record["context"]["ename"] == "KeyError"
    assert record["context"]["cause"]["ename"] == "ZeroDivisionError"
    assert describe(cyclic)["cause"]["cause"] is None


def test_members_of_a_group_are_described() -> None:
    group = ExceptionGroup("both", [ValueError("a"), ExceptionGroup("in", [KeyError("b")])])

    record = describe(group)

    assert [member["ename"] for member in record["group"]] == ["ValueError", "ExceptionGroup"]
    assert record["group"][1]["group"][0]["ename"] == "KeyError"


def test_a_syntax_error_keeps_its_place() -> None:
    record = describe(raised(run_source, "x = 1\ny = (2 3)"))

    assert record["syntax"]["filename"] == "<cell>"
    assert record["syntax"]["lineno"] == 2
    assert "y = (2 3)" in record["syntax"]["text"]


def test_a_deep_recursion_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def recurse(depth: int) -> int:
        return recurse(depth + 1) + 1

    error = raised(recurse, 0)
    read: list[int] = []
    getline = linecache.getline

    def note(file: str, line: int) -> str:
        read.append(line)
        return getline(file, line)

    monkeypatch.setattr(failure.linecache, "getline", note)

    record = describe(error)

    assert len(read) < 60  # only the frames that are shown are looked at
    assert len(record["frames"]) < 60
    assert sum(frame.get("skipped", 0) for frame in record["frames"]) > 500
    assert len(json.dumps(record)) < 100_000


def test_a_huge_message_and_many_notes_are_cut() -> None:
    error = ValueError("z" * 10_000_000)
    for number in range(1000):
        error.add_note("n" * 100_000 + str(number))

    assert len(json.dumps(describe(error))) < 1_000_000


class BrokenTextError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise SystemExit("from __str__")


class BrokenNotesError(Exception):
    """Its notes cannot be read."""

    @property
    def __notes__(self) -> list[str]:
        raise OSError("from __notes__")


@pytest.mark.parametrize("kind", [BrokenTextError, BrokenNotesError])
def test_an_exception_that_raises_when_looked_at_is_described_all_the_same(kind: Any) -> None:
    record = describe(kind())

    assert record["ename"] == kind.__name__
