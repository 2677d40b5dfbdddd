"""Engines that their owner reaches by TCP alone, on this very machine: see test_ssh for hosts."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from far_pools import Loopback, far_pool, mixed_plans
from ipyparallel.controller.app import IPController
from IPython.core.profiledir import ProfileDir

import jupyter_mgpu as mgpu
from jupyter_mgpu import curve
from jupyter_mgpu.errors import EngineDiedError, PoolStartError
from jupyter_mgpu.on_engine import lifeline, remote_leases
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.transport.controller_app import write_files_whole
from jupyter_mgpu.transport.far_port import FarPort
from jupyter_mgpu.wire import decode, encode
from notebooks import is_alive, wait_until


@pytest.fixture(scope="module")
def launcher() -> Loopback:
    return Loopback()


@pytest.fixture(scope="module")
def mixed(launcher: Loopback) -> Iterator[Pool]:
    with far_pool(mixed_plans(launcher)) as pool:
        yield pool


@pytest.fixture
def far(mixed: Pool) -> Iterator[Pool]:
    """A pool of one engine here and one elsewhere, both idle."""
    wait_until(lambda: all(e.state == "idle" for e in mixed.engines), 60, "idle engines")
    yield mixed
    for future in mixed.tasks():
        future.cancel()


def test_tasks_and_blocks_run_on_both(far: Pool) -> None:
    pids = mgpu.spmd(os.getpid)
    tasks = {mgpu.parfeval(os.getpid).result(60) for _ in range(4)}

    assert list(pids) == [engine.pid for engine in far.engines]
    assert tasks <= set(pids)
    assert [engine.host for engine in far.engines] == [None, "elsewhere"]


@pytest.mark.usefixtures("far")
def test_an_engine_elsewhere_knows_its_place_among_the_hosts() -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MGPU_LOCAL_RANK", "GROUP_RANK")

    places = mgpu.spmd(lambda: [os.environ[name] for name in names])

    assert list(places) == [["0", "2", "0", "0", "0"], ["1", "2", "0", "0", "1"]]


@pytest.mark.usefixtures("far")
def test_its_secrets_are_not_in_the_environment_of_user_code() -> None:
    found = mgpu.spmd(lambda: sorted({"MGPU_TOKEN", "MGPU_CURVE", "MGPU_ORDERS"} & set(os.environ)))

    assert list(found) == [[], []]


@pytest.mark.usefixtures("far")
def test_ranks_on_different_hosts_meet_in_collectives() -> None:
    def total() -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        value = torch.ones(3)
        dist.all_reduce(value)
        return value.sum().item()

    assert list(mgpu.spmd(total)) == [6.0, 6.0]


def test_large_data_goes_there_once_and_comes_back_by_the_socket(far: Pool) -> None:
    before = {engine.rank: engine.moved for engine in far.engines}
    data = np.arange(1_000_000, dtype=np.float64)

    back = mgpu.spmd(lambda x: x + 1, data)
    values = list(back)

    assert all(np.array_equal(value, data + 1) for value in values)
    moved = {engine.rank: engine.moved - before[engine.rank] for engine in far.engines}
    assert moved[1].shared == data.nbytes  # what it was sent: see test_host_data
    assert data.nbytes < moved[1].sent - moved[1].shared < 1.1 * data.nbytes
    assert moved[1].received > data.nbytes
    assert moved[0].shared >= data.nbytes
    assert not [sentence for sentence in far.said if "Shared memory" in sentence]


def test_stop_reaches_an_engine_elsewhere(far: Pool) -> None:
    starts = [engine.starts for engine in far.engines]
    future = mgpu.parfeval(lambda: time.sleep(60) or 1)
    others = [mgpu.parfeval(lambda: time.sleep(60) or 1)]
    wait_until(lambda: future.state == others[0].state == "running", 60, "two running tasks")

    begun_s = time.monotonic()
    for task in (future, *others):
        task.cancel()
    wait_until(lambda: all(e.state == "idle" for e in far.engines), 60, "idle engines")

    assert time.monotonic() - begun_s < 2
    assert [engine.starts for engine in far.engines] == starts


@pytest.mark.usefixtures("far")
def test_the_death_of_an_engine_elsewhere_is_told_at_once_with_its_cause() -> None:
    def die() -> None:
        os.write(2, b"its last word\n")
        os.kill(os.getpid(), signal.SIGSEGV)

    begun_s = time.monotonic()
    with pytest.raises(EngineDiedError) as raised:
        mgpu.spmd(lambda: die() if rank == 1 else None)  # noqa: F821 - an engine has it

    assert time.monotonic() - begun_s < 3
    assert "CPU on elsewhere" in str(raised.value)
    assert "SIGSEGV" in str(raised.value)
    assert "its last word" in str(raised.value)
    assert list(mgpu.spmd(lambda: rank)) == [0, 1]  # noqa: F821


def test_an_engine_whose_guard_is_killed_ends_and_is_replaced(
    far: Pool, launcher: Loopback
) -> None:
    starts, pid = far.engines[1].starts, far.engines[1].pid

    os.kill(launcher.processes[-1].pid, signal.SIGKILL)

    wait_until(lambda: not is_alive(pid), 60, "the engine's end")
    wait_until(lambda: far.engines[1].starts > starts, 60, "the next engine")
    wait_until(lambda: far.engines[1].state == "idle", 60, "the next engine, idle")


def test_what_a_guard_fails_with_is_told_at_once(far: Pool) -> None:
    task = mgpu.parfeval_on_all(time.sleep, 60)[1]
    wait_until(lambda: task.state == "running", 60, "a running task")

    far.owner._core._far.send_guard(f"1.{far.engines[1].starts}", [b"no message"])

    with pytest.raises(EngineDiedError, match="its guard on elsewhere has failed") as raised:
        task.result(lifeline.MISSED_BEATS * lifeline.BEAT_S / 2)
    assert "in _obey" in str(raised.value)


def test_what_a_guard_fails_with_at_its_start_is_told() -> None:
    launcher = Loopback({remote_leases.VARIABLE: "no JSON"})

    with (
        pytest.raises(PoolStartError, match=r"has failed \(json.*Expecting value: line 1"),
        far_pool(mixed_plans(launcher)),
    ):
        pass


def test_a_stranger_is_not_heard(far: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    core, heard = far.owner._core, []
    listen = core._far.listener

    def note(name: str, parts: Sequence[Any]) -> None:
        heard.append(decode(parts)[0]["op"])  # the engine itself may speak as well
        listen(name, parts)

    monkeypatch.setattr(core._far, "listener", note)
    context = zmq.Context()
    sockets = []
    own = b" ".join(zmq.curve_keypair()).decode()
    for keys in (None, f"{core._far.keys.split()[0]} {own}"):
        socket = context.socket(zmq.DEALER)
        socket.identity, socket.linger = b"work:1." + str(far.engines[1].starts).encode(), 0
        if keys is not None:
            curve.use_client_keys(socket, keys)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        socket.connect(core._far.url)
        socket.send_multipart(encode({"op": "hello", "token": core._token}))
        sockets += [socket, monitor]
        assert not monitor.poll(1000)

    assert "hello" not in heard
    for socket in sockets:
        socket.close()
    context.term()


OWNER = """
import sys, json, os, time
sys.path.insert(0, {tests!r})
from far_pools import *
import jupyter_mgpu as mgpu
opened = far_pool(mixed_plans(Loopback()))
opened.__enter__()
import ctypes
def block():
    import subprocess
    child = subprocess.Popen(["sleep", "600"])
    return [os.getpid(), child.pid]
found = sum(mgpu.spmd(block), [])
tasks = [mgpu.parfeval(lambda: ctypes.PyDLL(None).sleep(600)) for _ in range(2)]
while not all(task.state == "running" for task in tasks): time.sleep(.01)
print("PIDS", json.dumps(found), flush=True)
time.sleep(600)
"""


def test_nothing_is_left_when_the_owner_is_killed_while_engines_hold_the_gil(
    tmp_path: Path,
) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER.format(tests=str(Path(__file__).parent)))
    owner = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        line = next(line for line in owner.stdout if line.startswith("PIDS"))
    finally:
        owner.kill()
        owner.wait()

    found = json.loads(line.removeprefix("PIDS"))
    assert len(found) == 4
    wait_until(lambda: not any(map(is_alive, found)), 60, "the end of all engines")


def test_constants_and_queues_reach_engines_elsewhere(far: Pool) -> None:
    table = mgpu.Constant(np.arange(500_000))
    news = mgpu.DataQueue()

    sums = mgpu.spmd(lambda: news.put(int(table.value[-1])) or int(table.value.sum()))

    assert list(sums) == [124_999_750_000] * 2
    assert [news.get(60), news.get(60)] == [499_999] * 2
    wait_until(lambda: far.engines[1].state == "idle", 60, "an idle engine")


def test_the_log_of_a_rank_elsewhere_is_whole_here(far: Pool) -> None:
    lines = [f"line {number}" for number in range(2000)]

    mgpu.spmd(lambda: print("\n".join(lines)) or os.write(1, b"from below\n"))

    log = far.owner.log(1)

    def logged() -> list[str]:
        written = log.read_text().split("\n")[:-1] if log.exists() else []  # whole lines only
        return [line for line in written if line.startswith("line ")]

    wait_until(
        lambda: log.exists() and "from below" in log.read_text(), 60, "what was written below"
    )
    wait_until(lambda: len(logged()) >= len(lines), 60, "the printed lines")
    assert logged() == lines


def test_a_kernel_that_holds_the_gil_for_long_loses_no_engine(far: Pool) -> None:
    starts = [engine.starts for engine in far.engines]
    future = mgpu.parfeval_on_all(lambda: 7)

    ctypes.PyDLL(None).sleep(12)

    assert [one.result(60) for one in future] == [7, 7]
    assert [engine.starts for engine in far.engines] == starts


def test_files_of_the_controller_are_there_only_when_they_are_complete(tmp_path: Path) -> None:
    class Controller(IPController):
        """Its own, as its method is replaced."""

    write_files_whole(Controller)
    profile = ProfileDir.create_profile_dir(str(tmp_path / "profile"))
    file = Path(profile.security_dir, "engine.json")
    file.write_text("before")
    (tmp_path / "same").hardlink_to(file)

    Controller(profile_dir=profile).save_connection_dict("engine.json", {"key": "k"})

    assert json.loads(file.read_text()) == {"key": "k"}
    assert (tmp_path / "same").read_text() == "before"  # the file was replaced, not written to


def test_pool_client_reaches_engines_elsewhere_over_encrypted_and_signed_connections(
    far: Pool,
) -> None:
    client = far.client

    assert client.ids == [0, 1]
    assert client[:].apply_sync(os.getpid) == [engine.pid for engine in far.engines]
    assert client.curve_serverkey
    assert client.session.key
    assert mgpu.spmd(lambda: 1)[1] == 1  # and the pool's own connections are as before


def test_what_is_sent_after_the_end_goes_nowhere() -> None:
    loop = asyncio.new_event_loop()
    port = FarPort(["127.0.0.1"], loop)
    port.close()

    port.send_guard("0.0", encode({"op": "sample"}))  # a view has looked at that moment

    loop.close()
