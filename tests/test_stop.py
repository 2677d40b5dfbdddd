"""Stop always wins: the cell ends within 2 s, and the pool is usable at once."""

import os
import signal
import time
from pathlib import Path

import pytest

from jupyter_mgpu.owner import records
from notebooks import Notebook, notebook, wait_until

POOL = "mgpu.current_pool()"
PIDS = f"[e.pid for e in {POOL}.engines]"
STATES = f"[str(e.state) for e in {POOL}.engines]"

INIT = "%%spmd\nimport torch, torch.distributed as dist\ndist.init_process_group()"
DDP = (
    "%%spmd\n"
    "dist.init_process_group()\n"
    "torch.manual_seed(0)\n"
    "ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))\n"
    "sgd = torch.optim.SGD(ddp.parameters(), 0.01)\n"
    "print('training', flush=True)\n"
    "while True:\n"
    "    sgd.zero_grad(); ddp(torch.ones(8, 256)).sum().backward(); sgd.step()"
)
SUM = (
    "%%spmd\ndist.init_process_group()\nt = torch.ones(1) * (rank + 1)\ndist.all_reduce(t)\n"
    "print('sum', t.item())"
)


@pytest.fixture(scope="module")
def torch_nb():
    """A notebook whose engines have torch."""
    with notebook() as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 2")
        opened.check(INIT, timeout=120)
        yield opened


def stop_after(nb: Notebook, code: str, shown: str) -> tuple[float, str]:
    """Press Stop once the cell has shown something; how long it took, and what it raised."""
    cell = nb.submit(code)
    nb.wait_for_output(cell, shown, 60)
    begun = time.monotonic()
    nb.stop()
    nb.wait(cell, 20)
    return time.monotonic() - begun, cell.ename


STUCK = {
    "a loop": "while True: pass",
    "sleep": "import time; time.sleep(99)",
    "a lock": "import threading\nlock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a subprocess": "import subprocess; subprocess.run(['sleep', '99'])",
    "an await": "import asyncio; await asyncio.sleep(99)",
    "a loop in an async cell": "import asyncio\nawait asyncio.sleep(0)\nwhile True: pass",
    "an event": "import threading; threading.Event().wait()",
    "a flood": "while True: print('in it', 'x' * 100)",
}


@pytest.mark.parametrize("stuck", STUCK.values(), ids=STUCK)
def test_stop_ends_a_cell_and_frees_its_ranks(nb: Notebook, stuck: str) -> None:
    before = nb.value(PIDS)

    seconds, ename = stop_after(nb, f"%%spmd\nprint('in it', flush=True)\n{stuck}", "[1] in it")

    assert ename == "KeyboardInterrupt"
    assert seconds < 2.5
    begun = time.monotonic()
    nb.check("%%spmd\n1 + 1", timeout=5)
    assert time.monotonic() - begun < 2.5
    assert nb.value(PIDS) == before


@pytest.mark.oldest
def test_run_all_ends_with_the_stopped_cell(nb: Notebook) -> None:
    code = "%%spmd\nprint('in it', flush=True)\nimport time; time.sleep(99)"
    first = nb.submit(code, stop_on_error=True)
    second = nb.submit("print('never')")
    nb.wait_for_output(first, "[1] in it")
    nb.stop()

    assert nb.wait(first).ename == "KeyboardInterrupt"
    reply = nb.client.get_shell_msg(timeout=60)
    assert reply["parent_header"]["msg_id"] == second.msg_id
    assert reply["content"]["status"] == "aborted"
    nb.client.kernel_info(reply=True, timeout=60)  # the kernel has forgotten the error


@pytest.mark.parametrize(
    "stuck",
    [
        "sum(range(10**12))",
        "while True:\n    try: time.sleep(99)\n    except KeyboardInterrupt: pass",
    ],
    ids=["a C loop", "a swallowed interrupt"],
)
def test_an_engine_that_does_not_stop_is_replaced_and_its_names_told(
    nb: Notebook, stuck: str
) -> None:
    nb.check("%%spmd\nprecious = 1")
    before = nb.value(PIDS)
    code = (
        "%%spmd\nimport time\nif rank == 0:\n"
        # A Stop that comes while the line is still being printed must not end the cell either.
        "    try:\n        print('in it', flush=True)\n        time.sleep(0.1)\n"
        "    except KeyboardInterrupt: pass\n    " + stuck.replace("\n", "\n    ")
    )

    seconds, ename = stop_after(nb, code, "[0] in it")

    assert (ename, seconds < 2.5) == ("KeyboardInterrupt", True)
    assert "stopping" in nb.value(STATES)
    wait_until(lambda: nb.value(PIDS)[0] not in (before[0], None), 60, "a new engine")
    assert nb.value(PIDS)[1] == before[1]
    refused = nb.run("%%spmd\nprecious")
    assert "precious" in refused.evalue
    assert "rank 0" in refused.evalue
    nb.check("%%spmd\nprecious = 2")


def test_a_second_stop_replaces_at_once(nb: Notebook) -> None:
    before = nb.value(PIDS)
    cell = nb.submit(
        "%%spmd\nimport time\nif rank == 0:\n    while True:\n        try:\n"
        "            print('in it', flush=True)\n            time.sleep(99)\n"
        "        except KeyboardInterrupt: pass"
    )
    nb.wait_for_output(cell, "[0] in it")
    begun = time.monotonic()
    nb.stop()
    nb.wait_for_output(cell, "stopping", 5)
    nb.stop()
    nb.wait(cell, 5)

    wait_until(lambda: nb.value(PIDS)[0] not in (before[0], None), 5, "a new engine")
    assert time.monotonic() - begun < 5


LATE_INTERRUPT = """%%spmd --ranks 1
import gc, signal, threading, types
from jupyter_mgpu.on_engine import runner as module
(runner,) = (found for found in gc.get_objects() if type(found) is module.Runner)
is_sent, is_next, is_killed = threading.Event(), threading.Event(), threading.Event()

def pthread_kill(*args):
    module.signal = signal
    is_sent.set()
    if not runner._lock.locked():  # nothing keeps the cell from ending first
        is_next.wait(60)
    signal.pthread_kill(*args)
    is_killed.set()

module.signal = types.SimpleNamespace(pthread_kill=pthread_kill, SIGINT=signal.SIGINT)
"""


def test_the_interrupt_of_a_cell_that_ends_meanwhile_does_not_hit_the_next_one(
    nb: Notebook,
) -> None:
    nb.check(LATE_INTERRUPT)
    stop_after(nb, "%%spmd --ranks 1\nprint('in it', flush=True)\nis_sent.wait(60)", "in it")

    nb.check("%%spmd --ranks 1\nis_next.set()\nassert is_killed.wait(60)")


BLOCKED = {
    "a lone all_reduce": "if rank == 0: dist.all_reduce(torch.ones(4))\nelse: time.sleep(99)",
    "a lone barrier": "if rank == 1: dist.barrier()\nelse: time.sleep(99)",
    "receive on both": "dist.recv(torch.zeros(1), 1 - rank)",
    "a store": "if rank == 0: dist.distributed_c10d._get_default_store().wait(['never'])\n"
    "else: time.sleep(99)",
}


@pytest.mark.parametrize("blocked", BLOCKED.values(), ids=BLOCKED)
def test_stop_frees_ranks_from_a_collective(torch_nb: Notebook, blocked: str) -> None:
    before = torch_nb.value(PIDS)
    code = "%%spmd\nimport time\ndist.init_process_group()\nprint('in it', flush=True)\n" + blocked

    seconds, ename = stop_after(torch_nb, code, "[1] in it")

    assert (ename, seconds < 2.5) == ("KeyboardInterrupt", True)
    assert "[1] sum 3.0" in torch_nb.check(SUM).text
    assert torch_nb.value(PIDS) == before


LATE_ABORT = """%%spmd
import pathlib, threading, time
from jupyter_mgpu.on_engine import process_group
is_making, is_over = threading.Event(), threading.Event()
is_asked = pathlib.Path({is_asked!r})

def is_still(before, after, then=process_group.is_still):
    process_group.is_still = then
    is_asked.touch()
    return is_making.wait(60)

def abort(*args, then=process_group.abort):
    process_group.abort = then
    while rank == 0 and not is_asked.exists():  # else it frees rank 1 before that is asked
        time.sleep(0.01)
    try:
        return then(*args)
    finally:
        is_over.set()

process_group.abort = abort
if rank == 1:
    process_group.is_still = is_still
"""


def test_the_abort_of_a_rank_that_a_peers_abort_has_freed_does_not_hit_the_next_cell(
    torch_nb: Notebook, tmp_path: Path
) -> None:
    torch_nb.check(LATE_ABORT.format(is_asked=str(tmp_path / "asked")))
    code = "%%spmd\ndist.init_process_group()\nprint('in it', flush=True)\n"
    stop_after(torch_nb, code + "dist.recv(torch.zeros(1), 1 - rank)", "[1] in it")

    wait = "if rank == 1:\n    is_making.set()\n    assert is_over.wait(60)\n"
    cell = torch_nb.check(SUM.replace("t = ", wait + "t = "))

    assert "[1] sum 3.0" in cell.text


@pytest.fixture
def quick_report(torch_nb: Notebook):
    """Tell of a hang after a second."""
    torch_nb.check("import os; os.environ['MGPU_HANG_REPORT_S'] = '1'")
    yield
    torch_nb.check("del os.environ['MGPU_HANG_REPORT_S']")


HANGS = {
    "has ended": "",
    "at cell line 6": "else: time.sleep(99)",
    "in barrier since": "else: dist.barrier()",
}


@pytest.mark.usefixtures("quick_report")
@pytest.mark.parametrize(("other", "code"), HANGS.items(), ids=HANGS)
def test_a_cell_that_hangs_says_who_waits_where_for_whom(
    torch_nb: Notebook, other: str, code: str
) -> None:
    before = torch_nb.value(PIDS)
    cell = torch_nb.submit(
        "%%spmd\nimport time\ndist.init_process_group()\n"
        "if rank == 0:\n    dist.all_reduce(torch.ones(4))\n" + code
    )

    torch_nb.wait_for_output(cell, "rank 0 in all_reduce since", 60)
    torch_nb.wait_for_output(cell, f"(cell line 5), rank 1 {other}")
    begun = time.monotonic()
    torch_nb.stop()
    torch_nb.wait(cell, 20)

    assert cell.ename == "KeyboardInterrupt"
    assert time.monotonic() - begun < 2.5
    assert "[1] sum 3.0" in torch_nb.check(SUM).text
    assert torch_nb.value(PIDS) == before


@pytest.mark.usefixtures("quick_report")
def test_a_hang_that_ends_is_told_no_longer(torch_nb: Notebook, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    cell = torch_nb.submit(
        "%%spmd\nimport pathlib, time\ndist.init_process_group()\nif rank == 1:\n"
        f"    while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
        "dist.all_reduce(torch.ones(4))\nprint('met', flush=True)\ntime.sleep(99)"
    )
    torch_nb.wait_for_output(cell, "rank 0 in all_reduce since", 60)

    gate.touch()

    torch_nb.wait_for_output(cell, "[0] met")
    torch_nb.wait_for(cell, lambda: "all_reduce" not in cell.text)
    torch_nb.stop()
    assert torch_nb.wait(cell, 20).ename == "KeyboardInterrupt"


def test_a_report_time_that_is_no_number_is_refused(torch_nb: Notebook) -> None:
    torch_nb.check("import os; os.environ['MGPU_HANG_REPORT_S'] = 'soon'")
    cell = torch_nb.run("%%spmd\nprint('ran')")
    torch_nb.check("del os.environ['MGPU_HANG_REPORT_S']")

    assert "MGPU_HANG_REPORT_S=soon was set" in cell.evalue
    assert "ran" not in cell.text


def test_twenty_stops_of_a_ddp_loop_leave_everything_as_it_was(torch_nb: Notebook) -> None:
    stop_after(torch_nb, DDP, "[1] training")
    torch_nb.check(SUM)
    before = torch_nb.value(PIDS)
    facts = (
        "%%spmd\nimport gc, os, threading, psutil\ngc.collect()\n"
        "size = (len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')),\n"
        "        psutil.Process().memory_info().rss >> 20)"
    )
    torch_nb.check(facts)
    first = torch_nb.value(f"list({POOL}['size'])")

    for number in range(20):
        cell = torch_nb.submit(DDP)
        torch_nb.wait_for_output(cell, "[1] training", 60)
        time.sleep(0.013 * number)  # the moment within the loop, not a wait
        torch_nb.stop()
        assert torch_nb.wait(cell).ename == "KeyboardInterrupt"

    assert "[1] sum 3.0" in torch_nb.check(SUM).text
    assert torch_nb.value(PIDS) == before
    torch_nb.check(facts)
    for (fds, threads, rss), (fds_0, threads_0, rss_0) in zip(
        torch_nb.value(f"list({POOL}['size'])"), first, strict=True
    ):
        assert fds <= fds_0 + 8
        assert threads <= threads_0 + 4
        assert rss <= rss_0 + 60


def test_a_failing_rank_frees_the_others_from_a_barrier(torch_nb: Notebook) -> None:
    before = torch_nb.value(PIDS)
    torch_nb.check("%%spmd\nkept = rank + 7")

    cell = torch_nb.run(
        "%%spmd\ndist.init_process_group()\nif rank == 0:\n    1 / 0\ndist.barrier()"
    )  # alone the barrier would wait for half an hour

    assert cell.ename == "ZeroDivisionError"
    assert "rank 1 (CPU): aborted in dist.barrier()" in cell.traceback
    assert torch_nb.value(PIDS) == before
    assert "[1] sum 3.0" in torch_nb.check(SUM).text
    assert torch_nb.value(f"list({POOL}['kept'])") == [7, 8]


def test_a_wrapped_net_of_an_aborted_group_says_so(torch_nb: Notebook) -> None:
    stop_after(torch_nb, DDP, "[1] training")

    cell = torch_nb.run("%%spmd\nddp(torch.ones(1, 256))")

    assert not cell.ok
    assert "process group" in cell.evalue.lower()


def test_a_killed_rank_frees_the_others_and_the_next_cell_runs(torch_nb: Notebook) -> None:
    cell = torch_nb.submit(DDP)
    torch_nb.wait_for_output(cell, "[1] training", 60)
    os.kill(_engine_pids(torch_nb)[1], signal.SIGKILL)
    torch_nb.wait(cell)

    assert cell.ename == "EngineDiedError"
    assert "rank 1" in cell.evalue
    torch_nb.check(INIT, timeout=60)
    assert "[1] sum 3.0" in torch_nb.check(SUM).text


def test_a_rank_that_dies_before_the_group_is_made_is_named(torch_nb: Notebook) -> None:
    cell = torch_nb.run(
        "%%spmd\nimport os\nif dist.is_initialized(): dist.destroy_process_group()\n"
        "if rank == 1: os._exit(5)\ndist.init_process_group()",
    )

    assert cell.ename == "EngineDiedError"
    assert "rank 1" in cell.evalue
    assert "exited with code 5" in cell.evalue
    torch_nb.check(INIT, timeout=60)
    assert "[1] sum 3.0" in torch_nb.check(SUM).text


def _engine_pids(nb: Notebook) -> dict[int, int]:
    (record,) = [r for r in records.read_all() if r["pid"] == nb.pid]
    return {engine["rank"]: engine["pid"] for engine in record["engines"]}


def test_stop_during_an_import_does_not_poison_the_engine() -> None:
    with notebook() as nb:
        nb.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 1")
        before = nb.value(PIDS)
        cell = nb.submit("%%spmd\nprint('in it', flush=True)\nimport torch\nimport torch._dynamo")
        nb.wait_for_output(cell, "in it")
        nb.stop()
        nb.wait(cell, 30)

        nb.check("%%spmd\nimport torch\nimport torch._dynamo\nprint(torch.ones(1))", timeout=60)
        assert nb.value(PIDS) == before
