"""Pools on GPUs, in real notebooks on a pretended machine: pins, leases, who shares with whom."""

import ast
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpu_stubs import GpuMachine, divided_gpu, gpu, gpu_uuid, gpus, mig_uuid, mixed_gpus

from jupyter_mgpu.leases import Lease, LeaseBook
from notebooks import Cell, Notebook, is_alive, notebook, wait_until

ENGINES = (
    "[(e.rank, e.pid, e.device, e.proven, e.state.value) for e in mgpu.current_pool().engines]"
)


@contextlib.contextmanager
def gpu_notebook(machine: GpuMachine, name: str, **variables: str) -> Iterator[Notebook]:
    environment = {**machine, "JPY_SESSION_NAME": f"notebooks of ada/{name}.ipynb", **variables}
    with notebook(environment) as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu, os")
        yield opened


@pytest.fixture(scope="module")
def machine(gpu_machine) -> GpuMachine:
    return gpu_machine(gpus(4))


@pytest.fixture(scope="module")
def _notebook(machine: GpuMachine) -> Iterator[Notebook]:
    with gpu_notebook(machine, "train") as opened:
        yield opened


@pytest.fixture(scope="module")
def _other(machine: GpuMachine) -> Iterator[Notebook]:
    with gpu_notebook(machine, "other") as opened:
        yield opened


def clean(opened: Notebook) -> None:
    opened.check(
        "from jupyter_mgpu import pools as _pools\n"
        "for pool in _pools.open_pools(): pool.shutdown(wait_for_tasks=False)"
    )


@pytest.fixture
def nb(_notebook: Notebook, machine: GpuMachine) -> Iterator[Notebook]:
    """A notebook without a pool on a machine with four free GPUs."""
    machine.write(gpus(4))
    yield _notebook
    clean(_notebook)
    machine.write(gpus(4))
    wait_until(lambda: not leases(machine), 60, "the end of all leases")


@pytest.fixture
def other(_other: Notebook, nb: Notebook) -> Iterator[Notebook]:
    """A second notebook on the same machine."""
    assert nb.pid != _other.pid
    yield _other
    clean(_other)


def leases(machine: GpuMachine) -> list[Lease]:
    return LeaseBook(machine.lease_folder).live()


def leased(machine: GpuMachine) -> list[str]:
    return sorted(lease.gpu_uuid for lease in leases(machine))


def uuids(*indices: int) -> list[str]:
    return [gpu_uuid(index) for index in indices]


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def value(opened: Notebook, expression: str) -> Any:
    """Evaluate an expression in the kernel, also while the pool has something to tell."""
    shown = opened.check(f"print('<<' + repr({expression}) + '>>')").stdout
    found = re.search(r"<<(.*)>>", shown)
    assert found is not None, shown
    return ast.literal_eval(found[1])


def engines(opened: Notebook) -> list[tuple[int, int, str, bool, str]]:
    return value(opened, ENGINES)


def masks(opened: Notebook) -> list[str]:
    return [environment_of(engine[1])["CUDA_VISIBLE_DEVICES"] for engine in engines(opened)]


def on_ranks(opened: Notebook, expression: str) -> list[object]:
    """Evaluate an expression on every rank."""
    opened.check(f"%%spmd --quiet\nasked = {expression}")
    return value(opened, "list(mgpu.current_pool()['asked'])")


def refusal(opened: Notebook, line: str) -> str:
    """Run a line that must be refused in one line, without a pool and without a traceback."""
    cell = opened.run(line)
    assert cell.ename == "UsageError", cell.text
    assert "\n" not in cell.evalue
    assert "Traceback" not in cell.text
    return cell.evalue


def start(opened: Notebook, line: str) -> Cell:
    return opened.check(line)


def test_ranks_run_on_the_gpus_that_were_named_and_cuda_agrees(
    nb: Notebook, machine: GpuMachine
) -> None:
    machine.write(mixed_gpus())

    start(nb, "%parpool 2 --gpus 1,3")

    found = engines(nb)
    assert [(rank, device, proven) for rank, _, device, proven, _ in found] == [
        (0, "GPU 1 (NVIDIA L40S)", True),
        (1, "GPU 3 (NVIDIA H200)", True),
    ]
    for (_, pid, *_), mask in zip(found, ["1", "3"], strict=True):
        environment = environment_of(pid)
        assert environment["CUDA_VISIBLE_DEVICES"] == mask
        assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert (environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert on_ranks(nb, "device") == ["cuda:0", "cuda:0"]
    assert leased(machine) == uuids(1, 3)


def test_the_mask_is_there_before_anything_can_be_imported(nb: Notebook, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if 'MGPU_RANK' in os.environ:\n"
        "    import ctypes; ctypes.CDLL(os.environ['MGPU_LIBCUDA']).cuInit(0)\n"
        f"    path = os.path.join({str(tmp_path)!r}, 'rank' + os.environ['MGPU_RANK'])\n"
        "    open(path, 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    )
    nb.check(f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}")
    try:
        start(nb, "%parpool --gpus 3,1")
    finally:
        nb.check("del os.environ['PYTHONPATH']")

    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == ["3", "1"]
    assert [engine[3] for engine in engines(nb)] == [True, True]


def test_a_replaced_engine_keeps_its_gpu_and_nobody_can_take_it_meanwhile(
    nb: Notebook, machine: GpuMachine
) -> None:
    start(nb, "%parpool 2 --gpus 3,1")
    before = engines(nb)
    watched = "[(e.pid, e.state.value) for e in mgpu.current_pool().engines][1]"

    os.kill(before[1][1], signal.SIGKILL)

    def is_replaced() -> bool:
        assert leased(machine) == uuids(1, 3)
        pid, state = value(nb, watched)
        return state == "idle" and pid != before[1][1]

    wait_until(is_replaced, 60, "a new engine")
    after = engines(nb)
    assert after[0] == before[0]
    assert after[1][2:] == before[1][2:]
    assert masks(nb) == ["3", "1"]
    assert leased(machine) == uuids(1, 3)


def test_the_order_of_gpus_is_the_order_of_ranks(nb: Notebook) -> None:
    start(nb, "%parpool --gpus 2,0")

    assert masks(nb) == ["2", "0"]


def test_gpus_that_were_not_named_are_not_touched(nb: Notebook, machine: GpuMachine) -> None:
    machine.write(gpus(6))

    start(nb, "%parpool --gpus 2-4")

    assert masks(nb) == ["2", "3", "4"]
    assert leased(machine) == uuids(2, 3, 4)


def test_a_wrong_pin_stops_the_start_and_names_both_gpus(nb: Notebook, machine: GpuMachine) -> None:
    # Without the bus, NVML's order is all there is to go by; CUDA still counts along the bus.
    machine.write(
        f"{gpu(0, bus='00000000:90:00.0')}\n{gpu(1, bus='00000000:20:00.0')}\n"
        "fail nvmlDeviceGetPciInfo 3"
    )

    words = refusal(nb, "%parpool 1 --gpus 0")

    assert f"Rank 0 should run on GPU 0 ({gpu_uuid(0)})" in words
    assert f"CUDA shows it GPU 1 ({gpu_uuid(1)})" in words
    assert value(nb, "mgpu.current_pool() is None")
    wait_until(lambda: not leases(machine), 60, "the end of the lease")
    wait_until(lambda: children_of(nb.pid) == [], 60, "the end of its processes")


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    return [child.pid for child in psutil.Process(pid).children() if is_alive(child.pid)]


def test_a_pin_that_cuda_does_not_confirm_is_told(nb: Notebook, machine: GpuMachine) -> None:
    machine.add("fail cuInit 999")

    cell = start(nb, "%parpool 1")

    assert "The GPU of rank 0 is not proven" in cell.text
    assert engines(nb)[0][3] is False


@pytest.mark.parametrize(
    ("mask", "order", "left"),
    [("3,1", "PCI_BUS_ID", [1, 3]), (",".join(uuids(2, 0)), None, [0, 2]), ("1", None, [1])],
    ids=["numbers", "UUIDs", "numbers-in-cudas-own-order"],
)
def test_the_notebooks_own_mask_is_respected(
    nb: Notebook, machine: GpuMachine, mask: str, order: str | None, left: list[int]
) -> None:
    machine.write(mixed_gpus())
    nb.check(f"os.environ['CUDA_VISIBLE_DEVICES'] = {mask!r}")
    if order:
        nb.check(f"os.environ['CUDA_DEVICE_ORDER'] = {order!r}")

    try:
        cell = start(nb, "%parpool")
        hidden = refusal(nb, "%parpool --name more --gpus 0-3")
    finally:
        nb.check(
            "for name in ('VISIBLE_DEVICES', 'DEVICE_ORDER'): os.environ.pop(f'CUDA_{name}', 0)"
        )

    assert masks(nb) == [str(index) for index in left]
    assert leased(machine) == uuids(*left)
    assert f"CUDA_VISIBLE_DEVICES={mask} leaves this notebook" in cell.text
    assert "is hidden from this notebook" in hidden


def test_each_engine_gets_one_mig_instance_of_the_notebooks_mask(gpu_machine) -> None:
    machine = gpu_machine(f"{divided_gpu(0, 3)}\n{gpu(1)}")
    given = [mig_uuid(0, 2), mig_uuid(0, 0)]

    with gpu_notebook(machine, "mig", CUDA_VISIBLE_DEVICES=",".join(given)) as nb:
        start(nb, "%parpool 2")

        assert sorted(masks(nb)) == sorted(given)
        assert [engine[3] for engine in engines(nb)] == [True, True]
        assert on_ranks(nb, "device") == ["cuda:0", "cuda:0"]
        assert leased(machine) == sorted(given)
        table = nb.check("print(mgpu.gpu_table())").stdout
        assert "Traceback" not in table
        assert mig_uuid(0, 1) in table


def test_without_a_number_all_free_gpus_are_taken_and_the_users_of_the_others_told(
    nb: Notebook, other: Notebook, machine: GpuMachine
) -> None:
    start(other, "%parpool --gpus 1 --name theirs")

    with machine.foreign_process(2) as pid:
        cell = start(nb, "%parpool")

    assert masks(nb) == ["0", "3"]
    assert re.search(
        rf"GPU 1 is used by pool 'theirs' rank 0 \(user \w+, pid {other.pid}, "
        r"notebook notebooks of ada/other\.ipynb\), and left out\.",
        cell.text,
    )
    assert re.search(rf"GPU 2 is used by \S+ \(pid {pid}, user \w+\), and left out\.", cell.text)


def test_a_range_takes_as_many_as_are_free(nb: Notebook, machine: GpuMachine) -> None:
    with machine.foreign_process(1):
        start(nb, "%parpool 2:4")

    assert masks(nb) == ["0", "2", "3"]


def test_two_notebooks_that_start_at_once_never_take_the_same_gpu(
    nb: Notebook, other: Notebook, machine: GpuMachine
) -> None:
    cells = [opened.submit("%parpool 2") for opened in (nb, other)]
    for opened, cell in zip((nb, other), cells, strict=True):
        assert opened.wait(cell).ok, cell.evalue

    assert leased(machine) == uuids(0, 1, 2, 3)
    assert sorted([*masks(nb), *masks(other)]) == ["0", "1", "2", "3"]
    taken = masks(other)[0]
    for line in (f"%parpool --name more --gpus {taken}", "%parpool 1 --name more"):
        words = refusal(nb, line)
        assert f"GPU {taken} is used by pool 'pool' rank 0 (user " in words
        assert f"pid {other.pid}, notebook notebooks of ada/other.ipynb" in words
        assert "Choose other GPUs, wait for them with --wait, or share them with --share." in words
    assert leased(machine) == uuids(0, 1, 2, 3)


AS_SOMEBODY_ELSE = """
import ctypes, os, sys
if os.getuid() == 0:
    os.setuid(65534)
try:
    ctypes.CDLL(os.environ["MGPU_LIBCUDA"])
except OSError:
    pass  # a folder that only its owner may enter
print(flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def somebody_elses_process(machine: GpuMachine, index: int) -> Iterator[int]:
    """Let a process of a third user, where that can be had, use a GPU."""
    with machine.start(AS_SOMEBODY_ELSE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        line = f"process {index} pid={process.pid} memory=2048"
        machine.add(line)
        yield process.pid
        machine.remove(line)
        process.kill()


def test_a_third_users_gpu_is_refused_by_name_and_waited_for(
    nb: Notebook, machine: GpuMachine
) -> None:
    user = "nobody" if os.getuid() == 0 else r"\w+"
    with somebody_elses_process(machine, 0) as pid:
        words = refusal(nb, "%parpool 2 --gpus 0,1")
        assert re.search(rf"GPU 0 is used by \S+ \(pid {pid}, user {user}\)\. ", words)
        assert "--wait" in words
        assert "--share" in words
        out_of_time = refusal(nb, "%parpool 2 --gpus 0,1 --wait 0.01")
        assert f"pid {pid}" in out_of_time
        cell = nb.submit("%parpool 2 --gpus 0,1 --wait")
        nb.wait_for_output(cell, "Waiting: GPU 0 is used by python")
        assert not leases(machine)

    assert nb.wait(cell).ok, cell.evalue
    assert masks(nb) == ["0", "1"]


TRAINING = """%%spmd
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
sgd = torch.optim.SGD(ddp.parameters(), 0.1)
for _ in range(20):
    sgd.zero_grad(); ddp(torch.ones(2, 4) * (rank + 1)).sum().backward(); sgd.step()
weights = [torch.empty(1, 4) for _ in range(world_size)]
dist.all_gather(weights, ddp.module.weight.detach())
print("equal", world_size, bool((weights[0] == weights[1]).all()))
"""


def test_two_notebooks_train_at_once_beside_a_third_users_process(
    nb: Notebook, other: Notebook, machine: GpuMachine
) -> None:
    machine.write(gpus(5))
    notebooks = (nb, other)
    with somebody_elses_process(machine, 0) as pid:
        for code in ("%parpool 2", TRAINING):
            cells = [opened.submit(code) for opened in notebooks]
            for opened, cell in zip(notebooks, cells, strict=True):
                assert opened.wait(cell, 120).ok, cell.evalue
        for cell in cells:
            assert "[0] equal 2 True" in cell.text
            assert "[1] equal 2 True" in cell.text

        assert leased(machine) == uuids(1, 2, 3, 4)
        taken = int(masks(other)[0])
        words = refusal(nb, f"%parpool --name more --gpus 0,{taken}")
        assert f"pid {pid}" in words
        assert f"GPU {taken} is used by pool 'pool' rank 0" in words
        assert f"pid {other.pid}" in words
        waiting = nb.submit("%parpool --name more --gpus 0 --wait")
        nb.wait_for_output(waiting, "Waiting: GPU 0 is used by python")

    assert nb.wait(waiting).ok, waiting.evalue
    assert leased(machine) == uuids(0, 1, 2, 3, 4)


def test_a_stop_while_waiting_takes_nothing(nb: Notebook, machine: GpuMachine) -> None:
    with machine.foreign_process(1):
        cell = nb.submit("%parpool --gpus 0,1 --wait")
        nb.wait_for_output(cell, "Waiting: GPU 1 is used by")
        nb.stop()
        nb.wait(cell)

    assert cell.ename == "KeyboardInterrupt"
    assert leases(machine) == []
    assert value(nb, "mgpu.current_pool() is None")


def test_shared_gpus_are_told_and_leased_once_more(
    nb: Notebook, other: Notebook, machine: GpuMachine
) -> None:
    start(other, "%parpool --gpus 2 --name theirs")

    cell = start(nb, "%parpool --gpus 2 --share")

    assert "GPU 2 is used by pool 'theirs' rank 0" in cell.text
    assert "and shared." in cell.text
    assert leased(machine) == uuids(2, 2)
    start(nb, "%parpool stop")
    wait_until(lambda: leased(machine) == uuids(2), 60, "the end of one of the leases")


def test_several_engines_share_each_gpu(nb: Notebook, machine: GpuMachine) -> None:
    start(nb, "%parpool --gpus 3 --per-gpu 2")

    assert masks(nb) == ["3", "3"]
    assert leased(machine) == uuids(3, 3)
    assert on_ranks(nb, "(device, os.environ['MGPU_SHARES_GPU'])") == [("cuda:0", "1")] * 2


CHOOSE_RANKS = (
    "from jupyter_mgpu.training.places import choose_ranks\n"
    "place = choose_ranks(None, mgpu.TrainingOptions(execution_environment='multi-gpu'))"
)


def test_a_training_starts_an_engine_per_gpu(nb: Notebook) -> None:
    nb.check(CHOOSE_RANKS, timeout=100)

    assert masks(nb) == ["0", "1", "2", "3"]
    assert nb.value("place.trainers") == (0, 1, 2, 3)
    assert nb.value("place.words") == "4 GPUs of the pool 'pool'"


def test_engines_without_a_gpu_of_their_own_do_not_train(nb: Notebook) -> None:
    start(nb, "%parpool --gpus 1,3 --per-gpu 2")
    assert masks(nb) == ["1", "1", "3", "3"]

    nb.check(CHOOSE_RANKS, timeout=100)

    assert nb.value("place.trainers") == (0, 2)
    assert nb.value("place.loads") == (0.5, 0.5)


def test_an_engine_can_have_several_gpus(nb: Notebook, machine: GpuMachine) -> None:
    start(nb, "%parpool --gpus-per-engine 2")

    assert masks(nb) == ["0,1", "2,3"]
    assert leased(machine) == uuids(0, 1, 2, 3)
    assert [engine[2:4] for engine in engines(nb)] == [
        ("GPU 0 (NVIDIA H200), GPU 1 (NVIDIA H200)", True),
        ("GPU 2 (NVIDIA H200), GPU 3 (NVIDIA H200)", True),
    ]


def test_every_engine_can_see_the_whole_pool_in_rank_order(
    nb: Notebook, machine: GpuMachine
) -> None:
    start(nb, "%parpool --gpus 3,0 --visible pool")

    assert masks(nb) == ["3,0", "3,0"]
    assert leased(machine) == uuids(0, 3)
    asked = "(device, os.environ['LOCAL_RANK'], os.environ['LOCAL_WORLD_SIZE'])"
    assert on_ranks(nb, asked) == [("cuda:0", "0", "2"), ("cuda:1", "1", "2")]
    assert [engine[3] for engine in engines(nb)] == [True, True]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--gpus 9", "GPU 9 was requested, but this machine has: 0, 1, 2, 3."),
        ("--gpus 2-5", "GPU 4 was requested, but this machine has: 0, 1, 2, 3."),
        ("--gpus 1,1", "GPU 1 was requested twice"),
        ("--gpus one", "'one' in --gpus one names no GPU."),
        ("--gpus 3-1", "this machine has: 0, 1, 2, 3."),
        ("--gpus 1,,2", "this machine has: 0, 1, 2, 3."),
        ("--gpus GPU-99", "GPU GPU-99 was requested, but this machine has: 0, 1, 2, 3."),
        ("3 --gpus 1,2", "3 engines were asked for, but --gpus 1,2 makes 2."),
        ("5", "this notebook may use 4: 0, 1, 2, 3"),
        ("--gpus 0-2 --gpus-per-engine 2", "2 GPUs per engine do not divide"),
        ("--per-gpu 0", "at least 1"),
        ("two", "'two' was given"),
        ("--wait soon", "'soon'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    nb: Notebook, machine: GpuMachine, options: str, words: str
) -> None:
    assert words in refusal(nb, f"%parpool {options}")
    assert leases(machine) == []


def test_a_lost_gpu_is_left_out_and_named(nb: Notebook, machine: GpuMachine) -> None:
    machine.write(f"{gpu(0)}\n{gpu(1, lost=1)}\n{gpu(2)}")

    assert "GPU 1 cannot be used" in refusal(nb, "%parpool --gpus 1")
    table = nb.check("print(mgpu.gpu_table())").stdout
    start(nb, "%parpool")

    assert re.search(r"^1 .*lost", table, re.MULTILINE)
    assert leased(machine) == uuids(0, 2)
    assert masks(nb) == uuids(0, 2)  # a number could mean another GPU here
    assert [engine[3] for engine in engines(nb)] == [True, True]


def test_growing_takes_further_free_gpus_and_shrinking_gives_them_back(
    nb: Notebook, machine: GpuMachine
) -> None:
    start(nb, "%parpool 1 --gpus 2")
    first = engines(nb)
    nb.check("mgpu.current_pool()['x'] = 1")

    with machine.foreign_process(0):
        start(nb, "%parpool 3")
    assert engines(nb)[0] == first[0]
    assert masks(nb) == ["2", "1", "3"]
    assert leased(machine) == uuids(1, 2, 3)
    gone = engines(nb)[1:]

    start(nb, "%parpool 1")
    wait_until(lambda: leased(machine) == uuids(2), 60, "the end of two leases")
    assert not any(is_alive(pid) for _, pid, *_ in gone)

    start(nb, "%parpool --gpus 2,0")
    assert masks(nb) == ["2", "0"]
    assert engines(nb)[0] == first[0]
    assert start(nb, "%parpool --gpus 2,0").ok
    words = refusal(nb, "%parpool --gpus 0,2")
    assert "rank 0 has x" in words
    assert "Add --restart" in words


def test_a_pool_with_nothing_to_lose_moves_to_other_gpus(nb: Notebook, machine: GpuMachine) -> None:
    start(nb, "%parpool --gpus 0")

    start(nb, "%parpool 2 --gpus 1 --per-gpu 2")
    assert masks(nb) == ["1", "1"]
    start(nb, "%parpool 3")
    assert masks(nb) == ["1", "1", "0"]
    start(nb, "%parpool 2 --visible pool")
    assert masks(nb) == ["0,1"] * 2
    nb.check("mgpu.current_pool()['x'] = 1")
    assert "rank 1 has x" in refusal(nb, "%parpool 3")
    assert leased(machine) == uuids(0, 1)


def test_a_pool_that_cannot_grow_stays_as_it_is(nb: Notebook, machine: GpuMachine) -> None:
    start(nb, "%parpool 2")
    before = engines(nb)

    with machine.foreign_process(2), machine.foreign_process(3) as pid:
        assert f"pid {pid}" in refusal(nb, "%parpool 3")

    assert engines(nb) == before
    assert leased(machine) == uuids(0, 1)


FAILING_STDOUT = """
class Pressed:
    def write(self, text): raise KeyboardInterrupt
    def flush(self): pass
shown, sys.stdout = sys.stdout, Pressed()
try:
    mgpu.parpool()
finally:
    sys.stdout = shown
"""


def test_a_stop_between_choosing_and_starting_gives_the_gpus_back(
    nb: Notebook, machine: GpuMachine
) -> None:
    nb.check("import sys")
    with machine.foreign_process(1):  # so that there is something to tell
        cell = nb.run(FAILING_STDOUT)

    assert cell.ename == "KeyboardInterrupt"
    assert leases(machine) == []


HANGING_ENGINE = """
import os, threading
if "MGPU_RANK" in os.environ:
    print(os.getpid(), file=open({path!r}, "w"), flush=True)
    threading.Event().wait()
"""


def test_a_stop_while_engines_start_leaves_nothing(
    nb: Notebook, machine: GpuMachine, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    (tmp_path / "sitecustomize.py").write_text(HANGING_ENGINE.format(path=str(started)))
    nb.check(f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}")
    try:
        cell = nb.submit("%parpool 1")
        wait_until(lambda: started.exists() and started.read_text().strip(), 60, "an engine")
        pressed = time.monotonic()
        nb.stop()
        nb.wait(cell)
        seconds = time.monotonic() - pressed
    finally:
        nb.check("del os.environ['PYTHONPATH']")

    assert cell.ename == "KeyboardInterrupt"
    assert seconds < 3  # Stop has 2 s, and may lose one to a busy machine
    assert not is_alive(int(started.read_text()))
    # What was to ask CUDA about its GPU may be about to end.
    wait_until(lambda: children_of(nb.pid) == [], 60, "the end of its processes")
    wait_until(lambda: not leases(machine), 60, "the end of the lease")
    assert start(nb, "%parpool 1").ok


def test_a_stop_while_the_driver_hangs_ends_the_start(nb: Notebook, machine: GpuMachine) -> None:
    machine.add("hang cuInit")
    cell = nb.submit("%parpool 1")
    wait_until(lambda: leases(machine), 60, "a lease")
    wait_until(lambda: len(children_of(nb.pid)) >= 2, 60, "engine and question")
    pressed = time.monotonic()

    nb.stop()
    nb.wait(cell)
    seconds = time.monotonic() - pressed

    assert cell.ename == "KeyboardInterrupt"
    assert seconds < 3  # as above
    wait_until(lambda: not leases(machine), 60, "the end of the lease")


def test_stop_ends_a_pool_whose_new_engine_waits_for_the_driver(
    nb: Notebook, machine: GpuMachine
) -> None:
    start(nb, "%parpool 1")
    nb.check("pool = mgpu.current_pool()")
    machine.add("hang cuInit")
    os.kill(engines(nb)[0][1], signal.SIGKILL)
    wait_until(lambda: engines(nb)[0][1] and engines(nb)[0][4] == "starting", 60, "a new start")

    start(nb, "%parpool stop")

    assert value(nb, "pool.owner.wait(0)")  # it has ended, and was not given up
    wait_until(lambda: not leases(machine), 60, "the end of the lease")


def test_a_driver_that_hangs_does_not_hang_the_notebook(gpu_machine) -> None:
    machine = gpu_machine(f"{gpus(2)}\nhang nvmlDeviceGetCount")

    with gpu_notebook(machine, "hanging") as nb:
        shown = nb.check("%gpus").text
        cell = nb.check("%parpool 1")

        assert "did not answer" in shown
        assert "The engines run on the CPU." in cell.text
        assert "did not answer" in cell.text
        assert on_ranks(nb, "device") == ["cpu"]
        assert masks(nb) == [""]


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Let processes do nothing meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_the_leases_of_a_killed_notebook_end_after_its_engines(gpu_machine) -> None:
    machine = gpu_machine(gpus(2))
    with gpu_notebook(machine, "killed") as nb:
        start(nb, "%parpool 2")
        pids = {gpu_uuid(rank): pid for rank, pid, *_ in engines(nb)}
        guards = [guard.pid for pid in pids.values() for guard in psutil.Process(pid).children()]
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)  # so that they take a while to end

        def are_free() -> bool:
            held = leased(machine)
            for uuid, pid in pids.items():
                assert uuid in held or not is_alive(pid)
            return not held

        with stopped(guards):  # which hold the leases of their engines
            nb.kill()
            wait_until(lambda: not is_alive(nb.pid), 60, "the end of the notebook")
            assert leased(machine) == sorted(pids)
        wait_until(are_free, 60, "the end of the leases")

        assert not any(map(is_alive, pids.values()))


def test_nothing_is_left_of_a_notebook_killed_while_the_driver_hangs(gpu_machine) -> None:
    machine = gpu_machine(f"{gpus(1)}\nhang cuInit")
    with gpu_notebook(machine, "stuck") as nb:
        nb.submit("%parpool 1")
        wait_until(lambda: len(children_of(nb.pid)) >= 2, 60, "engine and question")
        pids = children_of(nb.pid)

        nb.kill()

        wait_until(lambda: not any(map(is_alive, pids)), 60, "the end of all processes")
        # The engine's guard, which holds the lease, ends a moment after the engine.
        wait_until(lambda: leases(machine) == [], 60, "the end of the lease")


def test_the_table_shows_the_pool_on_its_gpus(nb: Notebook) -> None:
    start(nb, "%parpool --gpus 1 --name resnet")

    table = nb.check("%gpus").text

    assert re.search(rf"^1 .*pool 'resnet' rank 0 .*pid {nb.pid}", table, re.MULTILINE)
    assert re.search(r"^0 .*nobody", table, re.MULTILINE)
