"""Large data for engines of other hosts: once to each host, then in its shared memory."""

import contextlib
import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from far_pools import Loopback, far_plan, far_pool
from ssh_hosts import Host, Hosts, run
from test_data_plane import blocks_of, mappings_of, pss_bytes, random_array, total, total_of

import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.errors import EngineDiedError
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.owner import host_copies, recent_frames
from jupyter_mgpu.owner.host_copies import HostCopies
from jupyter_mgpu.owner.host_lending import HostLending
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.shared_memory import block, holder
from jupyter_mgpu.transport.placement import Placement
from notebooks import is_alive, wait_until

SOME = 1.02
"""Encryption, headers and other messages."""


@pytest.fixture(scope="module")
def _quad() -> Iterator[Pool]:
    launcher = Loopback()
    hosts = [Placement(name, launcher) for name in ("left", "left", "right", "right")]
    plans = [
        far_plan(rank, placement, HostPlace(rank % 2, 2, rank // 2, 2))
        for rank, placement in enumerate(hosts)
    ]
    with far_pool(plans) as pool:
        yield pool


@pytest.fixture
def quad(_quad: Pool) -> Iterator[Pool]:
    """Ranks 0 and 1 on the pretended host left, 2 and 3 on right, all idle."""
    wait_until(lambda: all(e.state == "idle" for e in _quad.engines), 60, "idle engines")
    yield _quad
    for future in _quad.tasks():
        future.cancel()


def guards_of(pool: Pool) -> list[int]:
    return [psutil.Process(engine.pid).ppid() for engine in pool.engines if engine.pid]


def new_array(num_bytes: int = 40_000_000) -> Any:
    """Return an array that no block has in it so far."""
    return np.random.default_rng().random(num_bytes // 8)


def by_socket(pool: Pool) -> int:
    """Count what has gone to the engines, not counting what they share."""
    return sum(engine.moved.sent - engine.moved.shared for engine in pool.engines)


def wait_until_nothing_is_left(pool: Pool) -> None:
    gc.collect()
    pids = [os.getpid(), *guards_of(pool), *(engine.pid for engine in pool.engines)]
    # They are kept for ten times as long as it took to bring them.
    wait_until(lambda: not any(map(blocks_of, pids)), 60, "the end of the open blocks")
    wait_until(lambda: not any(map(mappings_of, pids)), 60, "the end of the mapped blocks")


def test_an_array_for_four_engines_goes_to_each_host_once(quad: Pool) -> None:
    array = new_array()
    before = by_socket(quad)

    sums = mgpu.spmd(total, array)

    assert list(sums) == [array.sum()] * 4
    assert 2 * array.nbytes < by_socket(quad) - before < 2 * array.nbytes * SOME
    del sums
    wait_until_nothing_is_left(quad)


def test_the_same_array_again_goes_nowhere(quad: Pool) -> None:
    array = new_array()
    mgpu.spmd(total, array)
    before = by_socket(quad)

    sums = mgpu.spmd(total, array)
    task = mgpu.parfeval(total, array)

    assert [*sums, task.result(60)] == [array.sum()] * 5
    assert by_socket(quad) - before < 1_000_000


def fill(name: str) -> None:
    context.read_value(name).fill(int(os.environ["RANK"]))


def test_a_host_has_one_copy_and_what_an_engine_writes_is_its_own(quad: Pool) -> None:
    array = random_array(40_000_000)
    pids = [os.getpid(), *guards_of(quad), *(engine.pid for engine in quad.engines)]
    mgpu.spmd(total, array[:1])
    before = pss_bytes(pids)

    quad["held"] = array
    assert list(mgpu.spmd(total_of, "held")) == [array.sum()] * 4
    grown = pss_bytes(pids) - before

    assert grown < 3.2 * array.nbytes  # one here, and one on each of two hosts
    mgpu.spmd(fill, "held")
    assert list(mgpu.spmd(total_of, "held")) == [rank * array.size for rank in range(4)]
    assert array.sum() == random_array(40_000_000).sum()
    del quad["held"]
    wait_until_nothing_is_left(quad)


def test_a_constant_goes_to_each_host_once(quad: Pool) -> None:
    constant = mgpu.Constant(new_array())
    before = by_socket(quad)

    sums = mgpu.spmd(lambda: total(constant.value))

    assert list(sums) == [constant.value.sum()] * 4
    assert by_socket(quad) - before < 2 * 40_000_000 * SOME


@pytest.mark.usefixtures("quad")
def test_objects_of_several_blocks_come_whole() -> None:
    arrays = [random_array(size) for size in (8_000_000, 9_000_008, 1_000_000, 800_000)]

    back = mgpu.spmd(lambda values: [value.copy() for value in values], arrays)

    for values in back:
        assert all(np.array_equal(a, b) for a, b in zip(arrays, values, strict=True))


# --- when a holder dies, or cannot hold, or nobody can open it ------------------------------


@contextlib.contextmanager
def broken_line(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Lose what follows the first pieces of a block; gives the names of the holders."""
    holders: set[str] = set()
    really = HostCopies._send_piece

    def send(self: Any, to: Any, copy: Any, start: int) -> None:
        if start < 4 * host_copies.PIECE_BYTES:
            really(self, to, copy, start)
        else:
            holders.add(to.name)  # from now on one is lost, even if the line is mended at once

    with monkeypatch.context() as patched:
        patched.setattr(HostCopies, "_send_piece", send)
        yield holders


def come_back(pool: Pool, holders: set[str]) -> None:
    """Let guards say hello, as they do when they have a connection again."""
    core = pool.owner._core
    for name in holders:
        core.loop.call_soon_threadsafe(core._far.guard_listener, name, {"op": "hello"})


def test_what_was_lost_with_a_connection_is_sent_again(
    quad: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = new_array()
    with broken_line(monkeypatch) as holders:
        tasks = [quad.submit(total, array) for _ in range(4)]
        wait_until(lambda: len(holders) == 2, 60, "a holder on each host")
    assert not any(task.done() for task in tasks)

    come_back(quad, holders)

    assert [task.result(60) for task in tasks] == [array.sum()] * 4


def test_a_holder_that_dies_while_it_receives_is_replaced_by_another(
    quad: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = new_array()
    with broken_line(monkeypatch) as holders:
        tasks = [quad.submit(total, array) for _ in range(4)]
        wait_until(lambda: len(holders) == 2, 60, "a holder on each host")
    dead, other = (int(name.partition(".")[0]) for name in sorted(holders))

    os.kill(quad.engines[dead].pid, signal.SIGKILL)
    come_back(quad, {f"{other}.{quad.engines[other].starts}"})

    done = {task.rank: task for task in tasks}
    with pytest.raises(EngineDiedError, match="SIGKILL"):
        done.pop(dead).result(60)
    assert [task.result(60) for task in done.values()] == [array.sum()] * 3
    assert not [sentence for sentence in quad.said if "Large data" in sentence]


def test_a_stop_does_not_wait_for_data_that_is_on_its_way(
    quad: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = new_array()
    starts = [engine.starts for engine in quad.engines]
    with broken_line(monkeypatch) as holders:
        tasks = [quad.submit_task(total, (array,), name=f"slow {n}") for n in range(4)]
        wait_until(lambda: len(holders) == 2, 60, "a holder on each host")
        begun_s = time.monotonic()

        for task in tasks:
            task.cancel()
        wait_until(lambda: all(e.state == "idle" for e in quad.engines), 60, "idle engines")
        took_s = time.monotonic() - begun_s

    assert took_s < 2
    assert [engine.starts for engine in quad.engines] == starts
    come_back(quad, holders)
    assert list(mgpu.spmd(total, array)) == [array.sum()] * 4
    del tasks
    wait_until_nothing_is_left(quad)


def test_what_follows_a_message_with_large_data_waits_behind_it(
    quad: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = quad.owner._core
    sent: list[str] = []
    really = HostLending._deliver

    def deliver(self: Any, message: Any) -> None:
        if message.header["op"] == "run" or message.header.get("key") == "nothing":
            sent.append(f"{message.peer} {message.header['op']}")  # not what was freed meanwhile
        really(self, message)

    monkeypatch.setattr(HostLending, "_deliver", deliver)
    with broken_line(monkeypatch) as holders:
        task = quad.submit(total, new_array())
        wait_until(lambda: holders, 60, "a holder")
        for rank in range(4):
            core.loop.call_soon_threadsafe(
                core.post, core.engines[rank], {"op": "free", "key": "nothing"}, []
            )
        wait_until(lambda: len(sent) == 3, 60, "the messages to the other engines")
    come_back(quad, holders)
    task.result(60)

    peer = f"work:{task.rank}.{quad.engines[task.rank].starts}"
    assert [line for line in sent if line.startswith(peer)] == [f"{peer} run", f"{peer} free"]


def test_large_data_goes_to_each_engine_where_copies_cannot_be_opened(
    quad: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = HostCopies._take_answer

    def take(self: Any, one: Any, copy: Any, answer: Any) -> None:
        if copy.host == "left" and answer.get("block"):
            answer["block"]["boot"] = "that of another machine"
        really(self, one, copy, answer)

    monkeypatch.setattr(HostCopies, "_take_answer", take)
    said = len(quad.said)
    for size in (40_000_000, 40_000_008, 40_000_016):
        array = new_array(size)
        assert list(mgpu.spmd(total, array)) == [array.sum()] * 4

    before = by_socket(quad)
    assert list(mgpu.spmd(total, array[:-1])) == [array[:-1].sum()] * 4
    assert by_socket(quad) - before > 3 * 40_000_000  # left has two engines, right one host
    told = [sentence for sentence in quad.said[said:] if "Large data" in sentence]
    assert len(told) == 1
    assert "on left" in told[0]
    assert "is on another host" in told[0]


def test_large_data_goes_to_each_engine_where_there_is_no_memory(
    quad: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = HostCopies._take_answer

    def take(self: Any, one: Any, copy: Any, answer: Any) -> None:
        refusal = {"why": "too little free memory"} if copy.host == "right" else {}
        really(self, one, copy, {**answer, **refusal})

    monkeypatch.setattr(HostCopies, "_take_answer", take)
    array = new_array()
    for _ in range(2):
        assert list(mgpu.spmd(total, array)) == [array.sum()] * 4
    told = [sentence for sentence in quad.said if "on right" in sentence]
    assert len(told) == 1
    assert "too little free memory" in told[0]


def test_nothing_is_left_in_memory_when_the_pool_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_frames, "KEPT_TIMES", 1e6)  # until then the guard has it
    plan = far_plan(0, Placement("elsewhere", Loopback()), HostPlace(0, 1))
    array = new_array()
    with far_pool([plan], name="short") as pool:
        assert pool.submit(total, array).result(60) == array.sum()
        (guard,) = guards_of(pool)
        assert blocks_of(guard)

    wait_until(lambda: not is_alive(guard), 60, "the end of the guard")
    wait_until(lambda: gc.collect() >= 0 and not blocks_of(os.getpid()), 60, "no block")


def test_a_holder_says_why_it_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "fits", lambda _: False)
    keeper, before = holder.Holder(), set(blocks_of(os.getpid()))
    piece = {"op": "piece", "id": 1, "start": 0, "size": 1000}

    answers = [keeper.obey(piece, [bytes(500)]), keeper.obey({**piece, "start": 500}, [bytes(500)])]

    assert [answer["why"] for answer in answers] == ["too little free memory"] * 2
    assert set(blocks_of(os.getpid())) <= before


def test_a_piece_may_come_twice_and_in_any_order() -> None:
    keeper, content, before = holder.Holder(), os.urandom(1000), set(blocks_of(os.getpid()))
    description = None
    for start in (500, 0, 500, 900, 0, 900):
        end = {0: 500, 500: 900, 900: 1000}[start]
        header = {"op": "piece", "id": 7, "start": start, "size": 1000}
        description = keeper.obey(header, [content[start:end]])["block"]

    assert bytes(block.open_block(description)) == content
    keeper.obey({"op": "drop", "id": 7}, [])
    assert set(blocks_of(os.getpid())) <= before


# --- over ssh: what crosses the link --------------------------------------------------------


@pytest.fixture(scope="module")
def ssh_quad(ssh_hosts: Hosts) -> Iterator[Pool]:
    hosts = tuple(
        HostDescription(host.name, host.name, gpus="none", engines=2)
        for host in (ssh_hosts.a, ssh_hosts.b)
    )
    options = SshOptions(config=ssh_hosts.config)
    with mgpu.parpool(
        cluster=ClusterDescription("lab", "ssh", hosts=hosts, options=options), name="ssh data"
    ) as pool:
        yield pool


def crossed(host: Host) -> int:
    """Count the bytes that have come to a host by its link."""
    counted = run("ip", "-n", host.namespace, "-s", "-j", "link", "show", "eth0")
    return int(json.loads(counted)[0]["stats64"]["rx"]["bytes"])


@pytest.mark.ssh
def test_a_broadcast_crosses_the_link_of_each_host_once(ssh_quad: Pool, ssh_hosts: Hosts) -> None:
    hosts = (ssh_hosts.a, ssh_hosts.b)
    array = new_array(100_000_000)
    mgpu.spmd(total, array[:1])
    before = [crossed(host) for host in hosts]

    assert list(mgpu.spmd(total, array)) == [array.sum()] * 4
    first = [crossed(host) for host in hosts]
    assert list(mgpu.spmd(total, array)) == [array.sum()] * 4
    second = [crossed(host) for host in hosts]

    for was, then, now in zip(before, first, second, strict=True):
        # Each packet of a link has 66 bytes of headers; large ones are sent as one.
        assert array.nbytes < then - was < 1.1 * array.nbytes
        assert now - then < 1_000_000
    assert [engine.host for engine in ssh_quad.engines] == ["hosta", "hosta", "hostb", "hostb"]


@pytest.mark.ssh
def test_data_comes_whole_over_a_link_that_was_cut(ssh_quad: Pool, ssh_hosts: Hosts) -> None:
    array = new_array(100_000_000)
    starts = [engine.starts for engine in ssh_quad.engines]
    before = crossed(ssh_hosts.b)
    tasks = [ssh_quad.submit(total, array) for _ in range(4)]
    wait_until(lambda: crossed(ssh_hosts.b) - before > 10_000_000, 60, "a part of the data")

    ssh_hosts.b.cut()
    time.sleep(3)
    ssh_hosts.b.mend()

    assert [task.result(60) for task in tasks] == [array.sum()] * 4
    assert [engine.starts for engine in ssh_quad.engines] == starts
