"""The stream: hello, everything, what changes; its pace, pauses, and clients that are no good."""

import asyncio
import contextlib
import random
import threading

import pytest
from jupyter_servers import *  # noqa: F403 - fixtures
from tornado.websocket import WebSocketClosedError

from jupyter_mgpu.monitor.sampler import sampler
from jupyter_mgpu.server.document import MOST_GONE, Document
from jupyter_mgpu.server.viewer import Viewer

pytestmark = [pytest.mark.oldest, pytest.mark.usefixtures("own_runtime_folder")]


def sampler_threads() -> int:
    return sum(thread.name == "mgpu-monitor" for thread in threading.enumerate())


def wait_for_end_of_sampler(wait) -> None:
    async def look() -> None:
        while sampler.is_running:
            await asyncio.sleep(0.02)

    wait(look())


def test_a_client_is_told_everything_and_then_what_changes(api, stream):
    def is_known(shown: dict) -> bool:
        return shown["telemetry"]["gpus"]["trouble"] or shown["telemetry"]["gpus"]["driver"]

    api.wait_until(is_known)  # a driver is looked for beside the first state
    client = stream()

    hello, snapshot, *deltas = [client.read() for _ in range(5)]

    assert hello["type"] == "hello"
    assert snapshot["type"] == "snapshot"
    assert set(snapshot["sections"]) == {"host", "telemetry", "gpus", "pools", "engines", "tasks"}
    assert [delta["type"] for delta in deltas] == ["delta"] * 3
    seqs = [message["seq"] for message in (snapshot, *deltas)]
    assert seqs == sorted(set(seqs))
    for delta in deltas:
        assert set(delta.get("changed", {})) <= {"host"}  # nothing else changes here


def test_a_second_client_costs_no_second_sampler(stream, wait):
    clients = [stream() for _ in range(3)]
    for client in clients:
        assert [client.read()["type"] for _ in range(3)] == ["hello", "snapshot", "delta"]
    assert sampler_threads() == 1

    for client in clients:
        client.close()

    wait_for_end_of_sampler(wait)


def test_a_pause_ends_the_sampler_and_going_on_brings_what_changed(stream, wait):
    client = stream()
    client.read_until(lambda message: message["type"] == "delta")

    client.send({"type": "pause"})
    wait_for_end_of_sampler(wait)
    client.send({"type": "resume"})

    message = client.read_until(  # one from before the pause may still be on its way
        lambda message: message["type"] == "delta" and sampler_threads() == 1
    )
    assert message["seq"] > client.messages[-2]["seq"]


@pytest.mark.parametrize(
    ("asked", "given"),
    [(2, 2.0), (0, 0.5), (-5, 0.5), (1e-9, 0.5), (1e9, 60.0), (float("inf"), 60.0)],
)
def test_an_interval_is_kept_within_its_limits(stream, asked, given):
    client = stream()
    client.read()

    client.send({"type": "interval", "seconds": asked})

    told = client.read_until(lambda message: message["type"] == "interval")
    assert told == {"type": "interval", "seconds": given}


def test_the_quickest_client_sets_the_pace_and_a_slow_one_keeps_its_own(stream):
    quick, slow = stream(), stream()
    for client, seconds in ((quick, 0.5), (slow, 60)):
        client.send({"type": "interval", "seconds": seconds})
        client.read_until(lambda message: message["type"] == "interval")
    num_before = len(slow.messages)
    quick.read_until(lambda message: message["type"] == "delta")

    for _ in range(4):
        quick.read()

    assert sampler.interval_s == 0.5
    quick_seqs = [m["seq"] for m in quick.messages if m["type"] == "delta"]
    assert quick_seqs[-1] - quick_seqs[0] >= 4
    slow.send("nonsense")  # so that there is something to read
    slow.read_until(lambda message: message["type"] == "error")
    late = [m for m in slow.messages[num_before:] if m["type"] == "delta"]
    assert len(late) <= 1  # which was due by its pace of before


@pytest.mark.parametrize(
    "message",
    [
        "nonsense",
        "[]",
        "5",
        "{}",
        '{"type": "dance"}',
        '{"type": "interval"}',
        '{"type": "interval", "seconds": "1"}',
        '{"type": "interval", "seconds": true}',
        '{"type": "interval", "seconds": NaN}',
        '{"type": ["pause"]}',
        pytest.param("[" * 4000, id="deep"),
    ],
)
def test_a_message_that_makes_no_sense_is_answered_in_words(stream, message):
    client = stream()
    client.read()

    client.send(message)

    answer = client.read_until(lambda message: message["type"] == "error")
    assert '{"type": "pause"}' in answer["message"]
    client.read_until(lambda message: message["type"] == "delta")  # and it goes on


def test_a_client_that_talks_nonsense_again_and_again_is_closed(stream):
    client = stream()
    with contextlib.suppress(WebSocketClosedError):  # it may be closed before the last ones
        for _ in range(12):
            client.send("nonsense")

    while client.read() is not None:
        pass

    assert client.connection.close_code == 1008


def test_a_huge_message_closes_its_client_only(stream):
    good, bad = stream(), stream()

    bad.send("x" * 5000)

    while bad.read() is not None:
        pass
    assert bad.connection.close_code == 1009
    good.read_until(lambda message: message["type"] == "delta")


def test_a_client_that_goes_away_disturbs_nobody(stream, caplog):
    staying = stream()
    staying.read_until(lambda message: message["type"] == "delta")
    for _ in range(5):
        stream().connection.stream.close()  # without a word

    for _ in range(2):
        staying.read_until(lambda message: message["type"] == "delta")

    assert not [record for record in caplog.records if record.exc_info]


def test_the_server_ends_with_clients_that_watch(stream, jp_serverapp, wait):
    client = stream()
    client.read_until(lambda message: message["type"] == "delta")

    wait(jp_serverapp.cleanup_extensions())

    while client.read() is not None:
        pass
    assert client.connection.close_code == 1001
    wait_for_end_of_sampler(wait)


def test_a_client_without_time_gets_the_newest_state_only(wait):
    async def watch() -> None:
        has_time, written = asyncio.Event(), []

        async def write(text: str) -> None:
            written.append(text)
            await has_time.wait()

        viewer = Viewer(write, 0.0, lambda: None)
        for seq in range(1, 100):
            if viewer.is_due():
                viewer.send(f"state {seq}", seq)
            await asyncio.sleep(0)
        assert written == ["state 1"]
        assert viewer.seq == 1  # what it is sent next tells all that changed since
        has_time.set()
        while not viewer.is_due():
            await asyncio.sleep(0)

    wait(watch())


def random_rows(chance: random.Random) -> dict:
    fields = ("a", "b", "c")
    ids = [f"r{number}" for number in range(6) if chance.random() < 0.6]
    return {row_id: {name: chance.choice([None, 1, 2, [3]]) for name in fields} for row_id in ids}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_states_a_client_misses_it_ends_up_with_the_same(seed):
    chance, document = random.Random(seed), Document()
    clients: list[tuple[int, dict]] = [(0, {})] * 4
    for _ in range(60):
        for name in ("gpus", "pools"):
            if chance.random() < 0.7:
                document.replace(name, random_rows(chance))
        document.commit()
        for place, (seq, sections) in enumerate(clients):
            if chance.random() < 0.4:
                clients[place] = (document.seq, apply(sections, document.since(seq)))
                assert clients[place][1] == {k: v for k, v in document.sections().items() if v}


def apply(sections: dict, delta: dict) -> dict:
    found = {name: {key: dict(row) for key, row in rows.items()} for name, rows in sections.items()}
    for name, rows in delta.get("changed", {}).items():
        for row_id, fields in rows.items():
            found.setdefault(name, {}).setdefault(row_id, {}).update(fields)
    for name, ids in delta.get("gone", {}).items():
        for row_id in ids:
            found.get(name, {}).pop(row_id, None)
    return {name: rows for name, rows in found.items() if rows}


def test_a_client_that_missed_too_much_is_told_everything():
    document = Document()
    document.replace("tasks", {str(number): {"x": 1} for number in range(MOST_GONE + 10)})
    before = document.commit()
    document.replace("tasks", {})
    document.commit()

    assert document.since(before) is None
    assert document.since(document.seq) == {}
    assert document.since(document.seq + 5) is None  # of an earlier server
