"""Large results of engines on other hosts: in pieces, so that they hold nothing else up."""

import asyncio
import builtins
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far_pools import Loopback, far_plan, far_pool

import jupyter_mgpu as mgpu
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.transport.far_port import FarPort
from jupyter_mgpu.transport.placement import Placement
from jupyter_mgpu.wire_pieces import MARK, PIECE_BYTES, Pieces, cut

MIB = 2**20


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One engine elsewhere."""
    there = Placement("elsewhere", Loopback())
    with far_pool([far_plan(0, there, HostPlace(0, 1, 0, 1))], name="results") as opened:
        yield opened


def ones(num_mib: int) -> Any:
    return np.ones(num_mib * MIB // 8)


def status(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


@pytest.mark.parametrize("sizes", [[3], [0, PIECE_BYTES, 0], [2 * PIECE_BYTES + 1, 5, 0]])
def test_pieces_make_the_same_parts_again(sizes: list[int]) -> None:
    parts = [bytes([number]) * size for number, size in enumerate(sizes, start=1)]
    pieces = Pieces()

    for _ in range(2):
        (whole,) = filter(None, map(pieces.take, cut(parts)))

        assert [bytes(part) for part in whole] == parts
        assert pieces.take([b"other", MARK]) == [b"other", MARK]


def test_the_rest_of_a_message_of_an_engine_that_was_given_up_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    port, heard = FarPort(["127.0.0.1"], loop), []
    port.listener = lambda name, _parts: heard.append(name)
    port.expect("0.1", "there", Path(os.devnull))
    message = list(cut([bytes(3 * PIECE_BYTES)]))

    for part in message[1:]:
        port._take("work:0.0", part)
    for part in message:
        port._take("work:0.1", part)

    assert heard == ["work:0.1"]
    assert list(port._pieces) == ["work:0.1"]
    port.close()
    loop.close()


def test_a_large_result_comes_in_small_parts_and_is_copied_once_there(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = []
    take = Pieces.take

    def look(self: Pieces, message: Any) -> Any:
        largest.append(max(map(len, message)))
        return take(self, message)

    monkeypatch.setattr(Pieces, "take", look)
    mgpu.parfeval(ones, 1).result(30)
    pid = pool.engines[0].pid
    assert pid is not None
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from now on
    before = status(pid, "VmRSS")

    result = mgpu.parfeval(ones, 200).result(60)

    assert result.nbytes == 200 * MIB
    assert result.min() == result.max() == 1
    result[0] = 2  # it is the notebook's own
    assert max(largest) == PIECE_BYTES
    assert status(pid, "VmHWM") - before < 250 * MIB


@pytest.mark.usefixtures("pool")
def test_a_result_that_the_engine_keeps_is_as_it_was_when_it_was_returned() -> None:
    def keep() -> Any:
        builtins.kept = np.zeros(64 * MIB // 8)  # type: ignore[attr-defined]
        return builtins.kept  # type: ignore[attr-defined]

    def change() -> None:
        builtins.kept[:] = 7  # type: ignore[attr-defined]

    first, second = mgpu.parfeval(keep), mgpu.parfeval(change)

    second.result(60)
    assert not first.result(60).any()
