"""comm: values of all kinds between ranks, and time-outs that name who waits for whom."""

import subprocess
import sys

import pytest
from plain_engines import PlainPool, shared_pool

from jupyter_mgpu.errors import CollectiveError
from jupyter_mgpu.on_engine import comm

SETUP = """
import os, time
import numpy as np, torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
"""


@pytest.fixture
def pool() -> PlainPool:
    pool = shared_pool()
    pool.values(SETUP + "if dist.is_initialized(): dist.destroy_process_group()")
    return pool


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("comm.all_reduce(torch.tensor([1.0, rank])).tolist()", [2.0, 1.0]),
        ("comm.all_reduce(torch.tensor([3, 4 + rank]), 'mean').tolist()", [3.0, 4.5]),
        ("comm.all_reduce(torch.tensor([True, rank == 0])).tolist()", [2, 1]),
        ("comm.all_reduce(torch.tensor([True, rank == 0]), 'min').tolist()", [True, False]),
        ("comm.all_reduce(torch.tensor(rank, dtype=torch.int16), 'max').item()", 1),
        ("comm.all_reduce(torch.ones(2, 3).t()[1:]).shape == (2, 2)", True),
        ("comm.all_reduce(np.arange(3)).tolist()", [0, 2, 4]),
        ("comm.all_reduce(np.float32([1, 2]), 'product').dtype.name", "float32"),
        ("comm.all_reduce(rank + 2, 'product')", 6),
        ("comm.all_reduce(10**30)", 2 * 10**30),
        ("comm.all_reduce(0.5 + rank, 'mean')", 1.0),
        ("comm.all_reduce([rank])", [0, 1]),
        ("comm.all_reduce({'min': 1}['min'] + rank, 'min')", 1),
    ],
)
def test_all_reduce_combines_values_in_their_own_form(
    pool: PlainPool, call: str, expected: object
) -> None:
    assert pool.values(f"out = {call}") == [expected, expected]


def test_all_reduce_leaves_its_argument_alone(pool: PlainPool) -> None:
    source = "x = torch.ones(2, requires_grad=True); comm.all_reduce(x); out = x.tolist()"

    assert pool.values(source) == [[1.0, 1.0]] * 2


def test_broadcast_gives_every_rank_the_value_of_one(pool: PlainPool) -> None:
    source = """
tensor = comm.broadcast(torch.full((2, 2), 5.0) if rank == 1 else None, src=1)
array = comm.broadcast(np.arange(3) if rank == 0 else None)
out = [tensor.tolist(), array.tolist(), type(array).__name__, comm.broadcast({"a": rank})]
"""

    assert pool.values(source) == [[[[5.0, 5.0], [5.0, 5.0]], [0, 1, 2], "ndarray", {"a": 0}]] * 2


def test_gather_collects_values_in_the_order_of_the_ranks(pool: PlainPool) -> None:
    source = """
equal = [part.tolist() for part in comm.gather(torch.full((2,), rank))]
unequal = [len(part) for part in comm.gather(torch.ones(rank + 1))]
mixed = [type(part).__name__ for part in comm.gather([1] if rank else torch.ones(1))]
out = [equal, unequal, mixed, comm.gather(f"rank {rank}", dst=1)]
"""

    first, second = pool.values(source)

    assert first[:3] == second[:3] == [[[0, 0], [1, 1]], [1, 2], ["Tensor", "list"]]
    assert (first[3], second[3]) == (None, ["rank 0", "rank 1"])


def test_values_go_from_rank_to_rank(pool: PlainPool) -> None:
    source = """
if rank == 0:
    comm.send(torch.arange(4), dst=1)
    comm.send({"x": 1}, dst=1, tag=3)
    comm.send(np.zeros(0), dst=1)
    out = comm.receive(src=1)
else:
    out = [comm.receive(src=0).tolist(), comm.receive(src=0, tag=3), comm.receive(src=0).shape]
    comm.send("done", dst=0)
"""

    assert pool.values(source) == ["done", [[0, 1, 2, 3], {"x": 1}, [0]]]


def test_a_barrier_that_nobody_joins_names_the_idle_rank(pool: PlainPool) -> None:
    pool.values("comm.barrier()")

    pool.run({0: "\n\ncomm.barrier(timeout=0.5)", 1: "pass"})
    waited, other = pool.results()

    assert waited["ename"] == "CollectiveError"
    assert waited["evalue"].startswith(
        "Rank 0 waited 0.5 s in comm.barrier (cell line 3) for rank 1, which is idle."
    )
    assert waited["kind"] == "timeout"
    assert other["status"] == "ok"
    assert pool.values("out = comm.all_reduce(1)") == [2, 2]


def test_a_receive_that_nobody_answers_names_where_the_other_rank_is(pool: PlainPool) -> None:
    pool.values("comm.barrier()")

    pool.run({0: "comm.receive(1, timeout=3)", 1: "comm.all_reduce(1)"})
    waited, lost = pool.results()

    assert "for rank 1, which is in comm.all_reduce (cell line 1)" in waited["evalue"]
    assert lost["evalue"].startswith("Rank 1 lost the others in comm.all_reduce (cell line 1)")
    assert (waited["kind"], lost["kind"]) == ("timeout", "peer")


def test_a_rank_that_never_comes_to_the_first_use_is_named(pool: PlainPool) -> None:
    pool.run({0: "comm.barrier(timeout=1)", 1: "pass"})
    waited, _other = pool.results()

    assert waited["ename"] == "CollectiveError"
    assert "for rank 1, which" in waited["evalue"]
    assert pool.values("out = comm.all_reduce(1)") == [2, 2]


def test_different_operations_are_told_at_once_and_the_group_stays_good(pool: PlainPool) -> None:
    pool.run({0: "comm.barrier()", 1: "\ncomm.all_reduce(torch.ones(3))"})
    replies = pool.results()

    for reply in replies:
        assert reply["evalue"].startswith(
            "The ranks are in different operations: rank 0 in comm.barrier (cell line 1), "
            "rank 1 in comm.all_reduce (cell line 2)."
        )
        assert reply["health"]["usable"]
    assert pool.values("out = comm.all_reduce(1)") == [2, 2]


def test_shapes_that_do_not_fit_are_told_at_once(pool: PlainPool) -> None:
    pool.run("comm.all_reduce(torch.ones(2 + rank))")
    replies = pool.results()

    for reply in replies:
        assert (
            "rank 0 has float32 of shape (2,) on cpu, rank 1 has float32 of shape (3,)"
            in (reply["evalue"])
        )
        assert reply["health"]["usable"]


def test_wrong_arguments_name_the_right_ones(pool: PlainPool) -> None:
    pool.run("comm.all_reduce(1, op='median')")
    assert {reply["evalue"] for reply in pool.results()} == {
        "op is 'median', but comm.all_reduce knows: sum, mean, product, min, max."
    }

    pool.run("comm.send(1, dst=rank)")
    assert "which is this rank itself" in pool.results()[0]["evalue"]

    pool.run("comm.broadcast(1, src=2)")
    assert {reply["evalue"] for reply in pool.results()} == {
        "src is 2, but the ranks are 0 to 1 (cell line 1)."
    }


def test_a_task_of_one_engine_alone_does_not_wait_for_ever(pool: PlainPool) -> None:
    pool.run({0: "process_group.begin_alone()\ncomm.barrier()", 1: "pass"})

    assert "needs all ranks" in pool.results()[0]["evalue"]


def test_a_function_of_the_notebook_can_be_combined(pool: PlainPool) -> None:
    source = """
class Counts(dict):
    def __add__(self, other):
        return Counts({key: self.get(key, 0) + other.get(key, 0) for key in self | other})
out = comm.all_reduce(Counts({rank: 1}))
out = sorted(out)
"""

    assert pool.values(source) == [[0, 1], [0, 1]]


def test_in_the_kernel_comm_says_where_it_belongs() -> None:
    with pytest.raises(CollectiveError, match=r"comm\.barrier works between .* %%spmd cell"):
        comm.barrier()


def test_importing_comm_imports_no_torch() -> None:
    source = "import sys; import jupyter_mgpu.on_engine.comm; assert 'torch' not in sys.modules"

    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
