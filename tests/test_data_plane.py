"""Large data in shared memory: once per host, right whatever it is, nothing left behind."""

import contextlib
import fcntl
import gc
import os
import pickle
import re
import resource
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch
from kept_pools import ended_later, kernel

import jupyter_mgpu as mgpu
from jupyter_mgpu import host, packing, tasks
from jupyter_mgpu.errors import EngineDiedError
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.shared_memory import Store, block, is_shared, lending, lent_memory, threads
from jupyter_mgpu.shared_memory.mapping import block_of
from jupyter_mgpu.start import parpool
from notebooks import Notebook, notebook, wait_for_file, wait_until


def blocks_of(pid: int) -> list[str]:
    """List the memfds that a process holds open."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # the process is gone
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError, PermissionError):  # it ends now
                if "memfd:mgpu" in str(descriptor.readlink()):
                    found.append(str(descriptor))
    return found


def mappings_of(pid: int) -> list[str]:
    """List the blocks, memfds or files, that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if "memfd:mgpu" in line or "/block-" in line]


def pids_of(pool: Pool) -> list[int]:
    return [os.getpid(), *(engine.pid for engine in pool.engines if engine.pid)]


def pss_bytes(pids: list[int]) -> int:
    """Return the memory of processes together, shared pages counted once."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(re.search(r"^Pss: +(\d+)", text, re.MULTILINE)[1]) * 1024 for text in texts)


def peak_rss_bytes(pid: int) -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def wait_until_nothing_is_left(pool: Pool) -> None:
    """Wait until no process of a pool has a block, open or mapped."""
    gc.collect()
    pids = pids_of(pool)
    wait_until(lambda: not any(map(blocks_of, pids)), 60, "the end of the open blocks")
    wait_until(lambda: not any(map(mappings_of, pids)), 60, "the end of the mapped blocks")


def wait_until_sent(pool: Pool) -> None:
    """Wait until no process of a pool holds a block open: each is with who reads it."""
    pids = pids_of(pool)
    wait_until(lambda: not any(map(blocks_of, pids)), 60, "the end of the open blocks")


def same(value: Any) -> Any:
    return value


def total(array: Any) -> float:
    return float(array.sum())


def total_of(name: str) -> float:
    return total(context.read_value(name))


def ones(num_bytes: int) -> Any:
    return np.ones(num_bytes, dtype=np.uint8)


def kept_ones(num_bytes: int, go_on: Path | None = None) -> Any:
    """Return an array that the engine still has; once a file is there, if one is given."""
    if go_on is not None:
        wait_for_file(go_on)
    kept = context.require().kept
    kept["ones"] = ones(num_bytes)
    return kept["ones"]


def sum_when_released(array: Any, path: str) -> float:
    """Read an array, say so, and hold it until the file is gone."""
    result = total(array)
    Path(path).with_suffix(f".{os.getpid()}").touch()
    wait_until(lambda: not Path(path).exists(), 60)
    return result


def random_array(num_bytes: int) -> Any:
    return np.random.default_rng(0).random(num_bytes // 8)


@contextlib.contextmanager
def owner_held(pool: Pool) -> Iterator[None]:
    """Keep the pool's owner from doing anything."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(60)

    pool.owner._core.loop.call_soon_threadsafe(hold)
    assert begun.wait(60)
    try:
        yield
    finally:
        go_on.set()


# --- once per host ---------------------------------------------------------------------


def test_a_value_on_two_engines_is_in_memory_once(pool: Pool) -> None:
    array = random_array(100_000_000)
    mgpu.spmd(total, array[:1], pool=pool)  # imports what this file imports
    before = pss_bytes(pids_of(pool))

    pool["shared_array"] = array
    sums = mgpu.spmd(total_of, "shared_array", pool=pool)
    wait_until_sent(pool)
    grown = pss_bytes(pids_of(pool)) - before

    assert [sums[0], sums[1]] == [array.sum()] * 2
    assert grown < 1.1 * array.nbytes
    del pool["shared_array"]
    wait_until_nothing_is_left(pool)


def test_calls_that_run_at_the_same_time_share_one_block(pool: Pool, tmp_path: Path) -> None:
    array = random_array(50_000_000)
    path = tmp_path / "hold"
    path.touch()

    futures = [pool.submit(sum_when_released, array, str(path)) for _ in range(2)]
    wait_until(lambda: len(list(tmp_path.iterdir())) == 3, 60, "both tasks")
    for _ in range(2):
        pool.owner.store.age()  # what was sent lately is not what is looked at here
    late = pool.submit(sum_when_released, array, str(path))

    assert len(blocks_of(os.getpid())) == threads.num_parts(array.nbytes)
    path.unlink()
    assert [future.result(60) for future in (*futures, late)] == [array.sum()] * 3
    wait_until_nothing_is_left(pool)


def test_an_array_that_was_changed_in_between_is_sent_as_it_is(pool: Pool, tmp_path: Path) -> None:
    array = random_array(50_000_000)
    path = tmp_path / "hold"
    path.touch()

    first = pool.submit(sum_when_released, array, str(path))
    expected = [array.sum()]
    array[array.size // 2] += 1000
    second = pool.submit(sum_when_released, array, str(path))
    expected.append(array.sum())
    path.unlink()

    assert [first.result(60), second.result(60)] == expected


def test_a_cell_sends_its_names_to_all_ranks_as_one_block(nb: Notebook) -> None:
    nb.check("import numpy as np\nbig = np.ones(12_500_000)")
    engines = nb.value("[engine.pid for engine in mgpu.current_pool().engines]")
    nb.check("%%spmd\nimport numpy\nprint(numpy.ones(9).sum())")
    before = pss_bytes([nb.pid, *engines])

    cell = nb.check("%%spmd\nprint(big.sum())")
    grown = pss_bytes([nb.pid, *engines]) - before

    assert cell.text.count("12500000.0") >= 2
    assert grown < 1.1 * 100_000_000
    assert all(mappings_of(pid) for pid in engines)
    wait_until(lambda: not blocks_of(nb.pid), 60, "the end of the kernel's block")
    nb.check("%%spmd\ndel big")
    wait_until(lambda: not any(map(mappings_of, engines)), 60, "the end of the mappings")


def test_who_receives_needs_little_more_memory_than_the_data(pool: Pool) -> None:
    array = random_array(200_000_000)
    pids = {engine.pid for engine in pool.engines}
    for pid in (os.getpid(), *pids):
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # forgets the peak
    before = {pid: peak_rss_bytes(pid) for pid in (os.getpid(), *pids)}

    future = pool.submit(total, array)
    assert future.result(60) == array.sum()
    pid = pool.engines[future.rank].pid
    assert peak_rss_bytes(pid) - before[pid] < 1.2 * array.nbytes

    result = pool.submit(ones, 200_000_000).result(60)
    assert result.sum() == 200_000_000
    assert peak_rss_bytes(os.getpid()) - before[os.getpid()] < 1.2 * (array.nbytes + result.nbytes)


# --- right whatever it is --------------------------------------------------------------


def test_what_a_task_writes_into_its_argument_stays_there(pool: Pool) -> None:
    def overwrite(array: Any) -> float:
        array[:] = 7
        return total(array)

    array = ones(20_000_000)
    futures = [pool.submit(overwrite, array) for _ in range(2)] + [pool.submit(total, array)]

    assert [future.result(60) for future in futures] == [7 * array.size] * 2 + [array.size]
    assert array.sum() == array.size


def test_a_result_can_be_written_and_outlives_its_engine() -> None:
    with parpool(1, name="outlived") as pool:
        assert pool.submit(total, ones(20_000_000)).result(60) == 20_000_000
        result = pool.submit(random_array, 20_000_000).result(60)
    assert not blocks_of(os.getpid())
    expected = random_array(20_000_000)

    assert np.array_equal(result, expected)
    result[:] = 0
    assert result.sum() == 0


def test_a_result_on_disk_is_what_the_task_returned(pool: Pool) -> None:
    future = pool.submit_task(ones, (4_000_000,), name="written into")

    result = future.result(60)
    result[:] = 0
    wait_until(lambda: not pool.tasks(), 60, "the task's end")
    wait_until(lambda: any(r.name == "written into" for r in tasks.list_records()), 60, "a record")

    assert tasks.load("written into").result().sum() == 4_000_000


def two_views() -> Any:
    base = random_array(8_000_000)
    return base, base[:1000], torch.from_numpy(base)


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Linear(1000, 1000))


def frame() -> Any:
    numbers = np.arange(500_000)
    return pandas.DataFrame({"n": numbers, "x": numbers / 3, "text": numbers.astype(str)})


OBJECTS: dict[str, Callable[[], Any]] = {
    "an array": lambda: random_array(8_000_000),
    "an array in Fortran's order": lambda: np.asfortranarray(
        random_array(8_000_000).reshape(1000, -1)
    ),
    "every second column": lambda: random_array(16_000_000).reshape(1000, -1)[:, ::2],
    "an array of texts": lambda: np.array(["one", "two and a half"] * 100_000),
    "an array of objects": lambda: np.array([1, "two", None] * 1_000_000, dtype=object),
    "bytes and text": lambda: (b"ab" * 2_000_000, bytearray(b"c" * 2_000_000), "ü" * 2_000_000),
    "nothing among much": lambda: [np.zeros(0), ones(4_000_000), np.zeros((3, 0)), b""],
    "thousands of arrays": lambda: [np.full(12_500, i) for i in range(2000)],
    "views of one memory": two_views,
    "a tensor": lambda: torch.arange(2_000_000).reshape(1000, -1).t(),
    "a network": lambda: network().state_dict(),
    "a sparse tensor": lambda: torch.ones(1000, 1000).to_sparse(),
    "a compressed sparse tensor": lambda: torch.ones(1000, 1000).to_sparse_csr(),
    "a sparse matrix": lambda: scipy.sparse.random(3000, 3000, 0.1, random_state=0, format="csr"),
    "a data frame": frame,
}


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, tuple | list):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_equal(left, right)
    elif isinstance(a, dict):
        assert_equal(list(a.values()), list(b.values()))
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a.to_dense(), b.to_dense())
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
        assert b.flags.writeable
    elif isinstance(a, pandas.DataFrame):
        pandas.testing.assert_frame_equal(a, b)
    elif scipy.sparse.issparse(a):
        assert (a != b).nnz == 0
    else:
        assert a == b


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", OBJECTS)
def test_large_objects_of_every_kind_come_back_equal(pool: Pool, kind: str) -> None:
    value = OBJECTS[kind]()

    with mgpu.count_bytes(pool) as moved:
        back = pool.submit(same, value).result(60)

    assert_equal(value, back)
    assert sum(part.shared for part in moved.values()) > 2_000_000
    del back
    wait_until_nothing_is_left(pool)


def test_an_array_that_cannot_be_written_is_sent(pool: Pool) -> None:
    array = random_array(8_000_000)
    array.flags.writeable = False

    assert pool.submit(total, array).result(60) == array.sum()


def test_a_module_trains_on_what_was_sent(pool: Pool) -> None:
    def train(net: Any, x: Any) -> Any:
        net(x).sum().backward()
        torch.optim.SGD(net.parameters(), 0.1).step()
        return net

    net, x = network(), torch.ones(10, 1000)
    before = net[0].weight.detach().clone()

    trained = pool.submit(train, net, x).result(60)
    expected = train(net, x)

    # Engines have other numbers of threads, which add up in another order.
    torch.testing.assert_close(trained.state_dict(), expected.state_dict())
    assert not torch.equal(before, trained[0].weight)


def test_more_than_four_gigabytes_arrive_whole(pool: Pool) -> None:
    size = 2**32 + 2**20
    if host.available_memory_bytes() < 3 * size:
        pytest.skip("It needs 13 GB of free memory.")
    array = np.zeros(size, dtype=np.uint8)  # pages that nobody wrote take no memory
    array[-1] = 5

    def look(array: Any) -> tuple[int, int]:
        return array.nbytes, int(array[-1])

    assert pool.submit(look, array).result(100) == (size, 5)
    wait_until_nothing_is_left(pool)


# --- results that nobody else has are copied, not shared -------------------------------


def alone(make: Callable[[], Any], keep: Callable[[Any], Any] = bool) -> list[bool]:
    """Tell of each large buffer of an object whether only its message refers to it.

    Args:
        make: Makes the object.
        keep: What it returns for the object is kept meanwhile.
    """
    value = make()
    kept = keep([value])
    frames = packing.pack(value)
    del value
    told = [lent_memory.is_alone(frame) for frame in frames[1:]]
    del kept
    return told


def test_it_is_known_what_nothing_else_refers_to() -> None:
    def array() -> Any:
        return np.ones(10_000)

    def tensor() -> Any:
        return torch.ones(10_000)

    makers = (array, tensor, lambda: np.ones((10_000, 2)).T, lambda: torch.ones(9, 999).t())
    for make in (*makers, lambda: torch.ones(10_000, requires_grad=True)):
        assert alone(make) == [True]
    assert alone(lambda: {"a": array(), "b": [tensor(), network().state_dict()]}) == [True] * 4
    assert alone(lambda: pandas.DataFrame({"n": array()})) == [True]

    def first(values: list[Any]) -> Any:
        return values[0]

    for make in makers:
        assert alone(make, first) == [False]
        assert alone(make, lambda values: values[0][5:]) == [False]
        assert alone(make, lambda values: memoryview(np.asarray(values[0]))) == [False]
    assert alone(array, lambda values: weakref.ref(values[0])) == [False]
    assert alone(array, lambda values: torch.from_numpy(values[0])) == [False]
    assert alone(tensor, lambda values: values[0].untyped_storage()) == [False]
    # These are alone, but Python cannot tell.
    assert alone(lambda: torch.from_numpy(array())) == [False]
    assert alone(lambda: tensor().numpy()) == [False]
    assert alone(lambda: tensor().share_memory_()) == [False]
    assert alone(lambda: Viewed(memoryview(array()))) == [False]
    value = array()
    assert alone(lambda: (value, value[:5000])) == [False, False]


class Viewed:
    """Something that travels as a memoryview."""

    def __init__(self, view: Any) -> None:
        self.view = view

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return Viewed, (pickle.PickleBuffer(self.view),)


def test_a_result_that_nobody_else_has_is_copied_and_let_go(pool: Pool) -> None:
    result = pool.submit_task(random_array, (50_000_000,), rank=0).result(60)

    assert np.array_equal(result, random_array(50_000_000))
    assert not mappings_of(os.getpid())
    link = "jupyter_mgpu.on_engine.context"

    def is_held() -> int:
        emit = __import__(link, fromlist=["_"]).require().emit
        return len(emit.__self__._lender._loans)

    wait_until(lambda: pool.submit_task(is_held, rank=0).result(60) == 0, 60, "the end of the loan")


def test_a_result_that_the_engine_still_has_is_as_it_was(pool: Pool) -> None:
    def change() -> None:
        context.require().kept["ones"][:] = 7

    first = pool.submit_task(kept_ones, (50_000_000,), rank=0)
    second = pool.submit_task(change, rank=0)

    second.result(60)
    assert mappings_of(os.getpid())
    assert first.result(60).sum() == 50_000_000
    pool.submit_task(context.delete_value, ("ones",), rank=0).result(60)


def test_blocks_serve_where_the_kernel_may_not_look_into_an_engine(
    lonely: Pool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    monkeypatch.setattr(
        lending, "copy_memory", lambda lent: refuse_to_copy(lent, refused.append(lent["size"]))
    )

    results = [lonely.submit(random_array, 20_000_000).result(60) for _ in range(3)]

    assert all(np.array_equal(result, random_array(20_000_000)) for result in results)
    assert len(mappings_of(os.getpid())) == 3
    assert refused == [20_000_000]  # not tried again
    assert "cannot be used" not in capsys.readouterr().out


def test_a_pool_that_is_kept_gives_results_on_in_blocks() -> None:
    with ended_later("data"), kernel() as opened:
        opened.check("%parpool 1 --keep --name data\nimport numpy")
        opened.check("results = [mgpu.parfeval(numpy.ones, 6_000_000).result() for _ in range(2)]")

        assert opened.value("[float(result.sum()) for result in results]") == [6_000_000] * 2
        assert len(mappings_of(opened.pid)) >= 2


def test_memory_of_a_process_that_has_ended_is_no_result() -> None:
    array = random_array(40_000_000)
    lent = lent_memory.lend(memoryview(array).cast("B"), array.ctypes.data)
    described = block_of(lent).describe()

    assert lent_memory.copy_memory(described) == memoryview(array).cast("B")
    other = described["mark"][0], "00" * 16
    with pytest.raises(ProcessLookupError):  # its number is another's by now
        lent_memory.copy_memory({**described, "mark": other})
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(ProcessLookupError):
        lent_memory.copy_memory({**described, "pid": ended.pid})
    with pytest.raises(OSError, match="Bad address"):
        lent_memory.copy_memory({**described, "address": 4096})


@contextlib.contextmanager
def copying_held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let copies into this process wait; gives what tells that one does."""
    begun, go_on, really_copy = threading.Event(), threading.Event(), lending.copy_memory

    def copy(description: dict[str, Any]) -> memoryview:
        begun.set()
        go_on.wait(60)
        return really_copy(description)

    monkeypatch.setattr(lending, "copy_memory", copy)
    try:
        yield begun
    finally:
        go_on.set()


def test_other_work_goes_on_while_a_result_is_copied(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copying_held(monkeypatch) as begun:
        first = pool.submit_task(random_array, (20_000_000,), rank=0)
        assert begun.wait(60)
        behind = pool.submit_task(same, (2,), rank=0)

        assert pool.submit_task(same, (1,), rank=1).result(60) == 1
        assert not first.done()
        assert not behind.done()

    assert first.result(60).nbytes == 20_000_000
    assert behind.result(60) == 2


def test_an_engine_that_dies_while_its_result_is_copied_fails_its_task(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copying_held(monkeypatch) as begun:
        future = pool.submit_task(random_array, (20_000_000,), rank=0)
        assert begun.wait(60)
        os.kill(pool.engines[0].pid, signal.SIGKILL)
        with pytest.raises(EngineDiedError):
            future.result(60)

    assert pool.submit_task(same, (3,), rank=0).result(60) == 3


def test_a_result_whose_copy_fails_in_any_way_comes_otherwise_and_others_follow(
    lonely: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_description: object) -> None:
        raise MemoryError

    monkeypatch.setattr(lending, "copy_memory", fail)
    first = lonely.submit(random_array, 20_000_000)

    assert lonely.submit(same, 2).result(60) == 2
    assert np.array_equal(first.result(60), random_array(20_000_000))


def test_an_event_that_cannot_be_handled_holds_up_no_other(
    lonely: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, sent = lonely.owner._core.scheduler, tmp_path / "sent"
    handle = scheduler.on_event

    def fail_once(engine: object, header: dict[str, Any], frames: list[Any]) -> None:
        if header["op"] == "report":
            scheduler.on_event = handle
            wait_for_file(sent)  # and the end of the task is on its way
            raise ValueError("on purpose")
        handle(engine, header, frames)

    def talk() -> int:
        mgpu.report(1, loss=0.5)
        sent.touch()
        return 7

    scheduler.on_event = fail_once

    assert lonely.submit(talk).result(60) == 7
    assert "on purpose" in caplog.text


# --- few descriptors -------------------------------------------------------------------


def test_an_object_of_many_arrays_takes_few_descriptors(tmp_path: Path) -> None:
    arrays = [memoryview(ones(200_000)) for _ in range(1000)]

    frames = Store(tmp_path, "tests").place([*arrays, memoryview(ones(300_000_000))])

    assert all(map(is_shared, frames))
    num_files = [threads.num_parts(size) for size in (1000 * 200_000, 300_000_000)]
    assert len(blocks_of(os.getpid())) == sum(num_files)
    assert sum(map(len, frames[:-1])) == 1000 * 200_000
    frames.clear()
    assert not blocks_of(os.getpid())


def test_a_block_of_several_files_holds_what_was_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.host, "num_cores", lambda: 3)
    numbers = np.random.default_rng(0)
    # The files end at page 6144 of 18432 and so on; these end before, at and behind such places.
    sizes = [threads.LEAST_PART_BYTES * 3 // 2 + 17, 1, 4096 * 5, threads.LEAST_PART_BYTES * 2 - 1]
    arrays = [numbers.integers(0, 256, size, np.uint8) for size in sizes]

    made = block.new_block(num_bytes=sum(sizes))
    views = made.fill(list(map(memoryview, arrays)))
    opened = block.open_block(made.describe())

    assert made.num_descriptors == 3
    assert all(view == array.data for view, array in zip(views, arrays, strict=True))
    assert opened[: sizes[0]] == arrays[0].data
    assert len(opened) == sum(part["size"] for part in made.describe()["parts"])
    opened[0] ^= 1  # what a reader writes is its own
    assert views[0] == arrays[0].data


def test_an_error_or_a_stop_in_one_file_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.host, "num_cores", lambda: 2)
    array = ones(threads.LEAST_PART_BYTES * 16)
    really_write = os.pwrite
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):
        made = block.new_block(num_bytes=array.nbytes)
        (first, second), written = [part.descriptor for part in made._parts], []

        def write(
            descriptor: int,
            piece: Any,
            place: int,
            *,
            failing: int = second if isinstance(error, OSError) else first,
            error: BaseException = error,
            written: list[int] = written,
            failed: threading.Event = threading.Event(),  # noqa: B008 - one for each turn
        ) -> int:
            if descriptor == failing:
                failed.set()
                raise error
            failed.wait(60)
            written.append(really_write(descriptor, piece, place))
            return written[-1]

        monkeypatch.setattr(os, "pwrite", write)
        with pytest.raises(type(error)):
            made.fill([memoryview(array)])

        assert sum(written) < array.nbytes // 2
        assert not blocks_of(os.getpid())


def test_many_waiting_tasks_leave_descriptors_to_others(pool: Pool, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    path = tmp_path / "hold"
    path.touch()
    holding = [
        pool.submit_task(sum_when_released, (ones(1), str(path)), rank=rank) for rank in (0, 1)
    ]
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        waiting = [pool.submit(total, np.full(1_100_000, i, np.uint8)) for i in range(150)]
        assert 50 < len(blocks_of(os.getpid())) <= 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    path.unlink()

    assert [f.result(60) for f in waiting] == [1_100_000 * i for i in range(150)]
    assert [f.result(60) for f in holding] == [1, 1]
    wait_until_nothing_is_left(pool)


def test_a_forked_child_does_not_keep_blocks_open(tmp_path: Path) -> None:
    frames = Store(tmp_path, "tests").place([memoryview(ones(2_000_000))])
    assert len(blocks_of(os.getpid())) == 1
    reading, writing = os.pipe()

    child = os.fork()
    if child == 0:
        os.write(writing, bytes([len(blocks_of(os.getpid()))]))
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reading, 1) == b"\0"
    assert bytes(frames[0]) == bytes(ones(2_000_000))


# --- ends ------------------------------------------------------------------------------


def test_an_engine_that_dies_before_it_reads_leaves_no_block(pool: Pool) -> None:
    os.kill(pool.engines[0].pid, signal.SIGSTOP)
    future = pool.submit_task(total, (random_array(20_000_000),), rank=0)
    wait_until(lambda: blocks_of(os.getpid()), 60, "the block")

    os.kill(pool.engines[0].pid, signal.SIGKILL)

    with pytest.raises(EngineDiedError):
        future.result(60)
    wait_until_sent(pool)


def test_an_engine_that_dies_after_it_wrote_fails_its_task(pool: Pool, tmp_path: Path) -> None:
    pid, go_on = pool.engines[0].pid, tmp_path / "go on"

    def is_sealed() -> bool:
        for path in blocks_of(pid):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
            finally:
                os.close(descriptor)
        return False

    future = pool.submit_task(kept_ones, (20_000_000, go_on), rank=0)
    wait_until(future.running, 60, "the task")
    with owner_held(pool):
        go_on.touch()
        wait_until(is_sealed, 60, "the result's block")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}/fd/0").exists(), 60, "its end")

    with pytest.raises(EngineDiedError):
        future.result(60)
    wait_until_sent(pool)


def test_a_killed_kernel_leaves_nothing_of_its_data() -> None:
    with notebook() as opened:
        opened.check(
            "%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\nimport numpy as np, time"
        )
        opened.check("pool = mgpu.parpool(1)\nbig = np.ones(5_000_000)")
        opened.check(
            "from pathlib import Path\n"
            "pool.owner.store._uses_memory = False\n"
            "tasks = [mgpu.parfeval(lambda x: time.sleep(99), big + i) for i in range(3)]"
        )
        folder = Path(opened.value("str(pool.owner.plan.folder)"))
        engine = opened.value("pool.engines[0].pid")
        wait_until(lambda: len(list(folder.glob("block-*"))) == 3, 60, "the files")

        opened.kill()

        wait_until(lambda: not folder.exists(), 60, "the end of the folder")
        wait_until(lambda: not Path(f"/proc/{engine}/fd/0").exists(), 60, "the engine's end")


def test_a_stop_ends_a_large_transfer_and_leaves_no_block(nb: Notebook, tmp_path: Path) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    nb.check(f"""
import numpy as np, os, pathlib, time
huge, really_write = np.zeros(500_000_000, dtype=np.uint8), os.pwrite
def write(*args):
    pathlib.Path({str(begun)!r}).touch()
    while not os.path.exists({str(go_on)!r}):
        time.sleep(0.01)
    return really_write(*args)
os.pwrite = write
""")

    cell = nb.submit("future = mgpu.parfeval(len, huge)")
    wait_for_file(begun)
    assert blocks_of(nb.pid)
    nb.stop()
    go_on.touch()  # for the other threads
    nb.wait(cell)
    nb.check("os.pwrite = really_write")

    assert cell.ename == "KeyboardInterrupt"
    wait_until(lambda: not blocks_of(nb.pid), 60, "the end of the block")
    assert nb.value("mgpu.parfeval(len, huge[:2_000_000]).result()") == 2_000_000


# --- where memory cannot be shared -----------------------------------------------------


@pytest.fixture
def lonely() -> Iterator[Pool]:
    """A pool with one engine, in which the test may forbid things."""
    with parpool(1, name="lonely") as opened:
        yield opened


def refuse_to_copy(description: dict[str, Any], _noted: None = None) -> memoryview:
    """Fail as the system does where one process may not look into another."""
    raise PermissionError(1, "Operation not permitted", f"process {description['pid']}")


def forbid(what: str) -> None:
    """Let this process not open blocks of a kind, as in another user namespace."""
    from jupyter_mgpu.shared_memory import block

    really_open = block._open

    def refuse(path: str) -> int:
        if what in path:
            raise PermissionError(13, "Permission denied", path)
        return really_open(path)

    block._open = refuse


def test_files_serve_where_an_engine_may_not_open_the_kernels_memory(
    lonely: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    lonely.submit(forbid, "/proc/").result(60)
    array = random_array(20_000_000)

    sums = [lonely.submit(total, array).result(60) for _ in range(3)]
    lonely["kept"] = array
    mapped = mappings_of(lonely.engines[0].pid)

    assert sums == [array.sum()] * 3
    assert [str(lonely.owner.plan.folder) in line for line in mapped] == [True]
    assert capsys.readouterr().out.count("Shared memory cannot be used here") == 1
    del lonely["kept"]
    for _ in range(2):
        lonely.owner.store.age()
    wait_until(lambda: not list(lonely.owner.plan.folder.glob("block-*")), 60, "no files")


def test_files_serve_where_the_kernel_may_not_open_an_engines_memory(
    lonely: Pool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "_open", block._open)  # puts the original back at the end
    monkeypatch.setattr(lending, "copy_memory", refuse_to_copy)
    forbid("/proc/")

    results = [lonely.submit(random_array, 20_000_000).result(60) for _ in range(3)]

    assert all(np.array_equal(result, random_array(20_000_000)) for result in results)
    assert len(mappings_of(os.getpid())) == 2
    assert capsys.readouterr().out.count("Shared memory cannot be used here") == 1
    wait_until(lambda: not list(lonely.owner.plan.folder.glob("block-*")), 60, "no files")


def test_sockets_serve_where_nothing_can_be_opened(
    lonely: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    lonely.submit(forbid, "/").result(60)
    array = random_array(20_000_000)

    sums = [lonely.submit(total, array).result(60) for _ in range(4)]

    assert sums == [array.sum()] * 4
    assert not mappings_of(lonely.engines[0].pid)
    said = capsys.readouterr().out
    assert said.count("goes through files in") == said.count("goes through the sockets") == 1


def test_sockets_serve_where_nothing_can_be_written(lonely: Pool) -> None:
    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    array = random_array(20_000_000)
    lonely.submit(limit).result(60)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        back = lonely.submit(same, array).result(60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert np.array_equal(back, array)
    assert not mappings_of(lonely.engines[0].pid)
    assert not list(lonely.owner.plan.folder.glob("block-*"))


def test_a_full_disk_is_noticed_before_anything_is_mapped(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("Only root may mount a small disk.")
    try:
        store = Store(tmp_path, "tests")
        store._uses_memory = False
        fits, too_large = memoryview(ones(2_000_000)), memoryview(ones(8_000_000))

        assert is_shared(store.place([fits])[0])
        assert store.place([too_large])[0] is too_large
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_engine_that_dies_leaves_no_file(lonely: Pool) -> None:
    folder = lonely.owner.plan.folder
    pid = lonely.engines[0].pid
    (folder / "block-0.0-77").touch()

    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: not list(folder.glob("block-*")), 60, "no files")


# --- counted ---------------------------------------------------------------------------


def test_bytes_are_counted_by_rank_and_way(pool: Pool) -> None:
    with mgpu.count_bytes(pool) as moved:
        pool.submit_task(same, (ones(10_000_000),), rank=0).result(60)
        pool.submit_task(same, (ones(500_000),), rank=1).result(60)
    pool.submit_task(same, (ones(10_000_000),), rank=1).result(60)

    assert moved[0].sent == pytest.approx(10_000_000, rel=0.01)
    assert moved[0].received == pytest.approx(10_000_000, rel=0.01)
    assert moved[0].shared == pytest.approx(20_000_000, rel=0.01)
    assert moved[1].sent == pytest.approx(500_000, rel=0.02)
    assert moved[1].shared == 0
    lines = repr(moved).splitlines()
    assert lines[0].split() == ["rank", "sent", "received", "of", "it", "in", "shared", "memory"]
    assert re.fullmatch(r"0 +10 MB +10 MB +20 MB", lines[2])
    assert re.fullmatch(r"all +10 MB +10 MB +20 MB", lines[4].replace("11 MB", "10 MB"))
    assert pool.engines[0].moved.shared >= 20_000_000
    assert "received" in repr(pool)
