"""Pools of this machine that become larger or smaller while they are used."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from gpu_stubs import gpus

import jupyter_mgpu as mgpu
from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.errors import OwnerError, PoolClosedError, PoolStartError
from jupyter_mgpu.opening.dividing import Offer, divide
from jupyter_mgpu.owner import owner
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.pool import Pool
from notebooks import Notebook, wait_until


def test_a_rank_that_comes_back_gets_the_kernels_names_again(nb: Notebook) -> None:
    nb.check("import jupyter_mgpu as mgpu; x = [1, 2]")
    nb.check("%parpool 2")
    nb.check("%%spmd\ny = sum(x)")
    nb.check("%%spmd\ndel y")
    nb.check("%parpool 1")

    nb.check("%parpool 2")

    nb.check("%%spmd\ny = sum(x), world_size")
    assert nb.check("list(mgpu.current_pool()['y'])").result == "[(3, 2), (3, 2)]"


def test_engines_that_share_their_gpus_have_the_right_local_size_after_shrinking(
    gpu_machine: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gpu_machine(gpus(3)).items():
        monkeypatch.setenv(name, value)

    def world() -> list[str]:
        names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "LOCAL_RANK")
        return [os.environ[name] for name in names]

    with mgpu.parpool(3, visible="pool", name="visible"):
        assert list(mgpu.spmd(world)) == [["3", "3", "1", str(rank)] for rank in range(3)]
        mgpu.parpool(2, name="visible")
        assert list(mgpu.spmd(world)) == [["2", "2", "1", "0"], ["2", "2", "1", "1"]]


def hanging_plan(pool: Pool, rank: int) -> EnginePlan:
    """Plan an engine that never says hello."""
    plan = pool.owner.engines[0].plan
    return EnginePlan(rank, "CPU", "cpu", {**plan.environment, "MGPU_RANK": "77"})


def test_until_its_new_engines_are_ready_a_pool_is_as_it_was() -> None:
    with mgpu.parpool(1, name="waits") as pool:
        growing = pool.owner.grow([hanging_plan(pool, 1)])
        wait_until(lambda: pool.owner._core._room.is_growing, 60, "an engine on its way")

        assert (pool.size, len(pool.engines)) == (1, 1)
        assert list(mgpu.spmd(lambda: os.environ["WORLD_SIZE"])) == ["1"]

        growing.cancel()
        with pytest.raises(PoolStartError, match="has 1 engines by now"):
            pool.owner.grow([hanging_plan(pool, 2)]).result(60)
        assert mgpu.parpool(2, name="waits") is pool  # in its turn: the other one has ended
        assert list(mgpu.spmd(lambda: os.environ["WORLD_SIZE"])) == ["2", "2"]


def test_ipyparallels_client_forgets_engines_that_were_not_to_join_after_all() -> None:
    with mgpu.parpool(1, name="forgets") as pool:
        client, plan = pool.client, pool.owner.engines[0].plan
        growing = pool.owner.grow([replace(plan, rank=1), hanging_plan(pool, 2)])
        wait_until(lambda: client.ids == [0, 1], 60, "an engine that waits for another one")

        growing.cancel()

        wait_until(lambda: client.ids == [0], 8, "its end, before heartbeats are missed for 10 s")


def test_a_client_that_cannot_be_had_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with mgpu.parpool(1, name="late") as pool:
        monkeypatch.setattr(owner, "CLIENT_S", 0.0)  # no controller starts as soon as that
        with pytest.raises(OwnerError, match=r"'late' had no connection.*%%spmd and parfeval"):
            _ = pool.client
        monkeypatch.undo()
        assert pool.client.ids == [0]


def test_a_pool_that_ends_while_it_grows_says_so() -> None:
    ended: list[BaseException] = []

    def grow(pool: Pool) -> None:
        try:
            pool.grow([hanging_plan(pool, 1)], {})
        except PoolClosedError as error:
            ended.append(error)

    with mgpu.parpool(1, name="ends") as pool:
        thread = threading.Thread(target=grow, args=(pool,))
        thread.start()
        wait_until(lambda: pool.owner._core._room.is_growing, 60, "an engine on its way")

    thread.join(60)
    assert "'ends'" in str(ended[0])


def test_an_engine_that_dies_while_it_waits_for_others_is_replaced_in_silence() -> None:
    events: list[str] = []

    with mgpu.parpool(1, name="joins") as pool:
        core, plan = pool.owner._core, pool.owner.engines[0].plan
        tell = core._listener
        core._listener = lambda header, frames: (events.append(header["op"]), tell(header, frames))
        pool.owner.grow([replace(plan, rank=1), hanging_plan(pool, 2)])
        wait_until(lambda: 1 in core._room.known, 60, "an engine on its way")
        joining = core._room.known[1]
        wait_until(lambda: joining.state is EngineState.IDLE, 60, "an engine that waits")
        os.kill(joining.process.pid, signal.SIGKILL)
        wait_until(lambda: joining.starts == 1 and joining.state is EngineState.IDLE, 60)

    assert "engine_died" in events
    assert "engine_replaced" not in events


def test_a_pool_that_has_ended_says_so_when_it_is_to_grow() -> None:
    with mgpu.parpool(1, name="over") as pool:
        plan = hanging_plan(pool, 1)

    with pytest.raises(PoolClosedError, match="'over' has ended"):
        pool.grow([plan], {})


@pytest.mark.parametrize(
    ("offers", "most", "shares"),
    [
        ([Offer(2), Offer(3)], None, [2, 3]),
        ([Offer(2), Offer(3)], 4, [2, 2]),
        ([Offer(2), Offer(3)], 9, [2, 3]),
        ([Offer(8, is_elastic=True), Offer(2)], 7, [5, 2]),
        ([Offer(8, is_elastic=True), Offer(2)], 1, [0, 1]),
        ([Offer(1, is_elastic=True), Offer(1, is_elastic=True)], 5, [3, 2]),
        ([Offer(1, is_elastic=True, has=3), Offer(1, is_elastic=True, has=1)], 3, [1, 2]),
        ([Offer(0), Offer(0, is_elastic=True)], 3, [0, 0]),
    ],
)
def test_engines_are_divided_among_hosts(
    offers: list[Offer], most: int | None, shares: list[int]
) -> None:
    assert divide(offers, most) == shares
