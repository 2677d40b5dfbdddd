"""The rendezvous: a port that is bound at once, and a store that starts at first use."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from plain_engines import plain_pool, shared_pool

from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.on_engine import guard
from jupyter_mgpu.rendezvous import Rendezvous, Visible
from notebooks import notebook

INIT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
out = x.item()
"""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def wait_until(condition: Callable[[], bool], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        threading.Event().wait(0.02)


def test_the_environment_is_that_of_a_torchrun_node_with_one_process() -> None:
    rendezvous = Rendezvous()

    variables = rendezvous.environment(1, 2, 7, user_environment={})

    assert {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MGPU_LOCAL_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(rendezvous.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "7",
        "TORCHELASTIC_RUN_ID": rendezvous.run_id,
        "JAX_PROCESS_ID": "1",
        "JAX_NUM_PROCESSES": "2",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }.items() <= variables.items()
    assert variables["GLOO_SOCKET_IFNAME"] == variables["NCCL_SOCKET_IFNAME"]
    assert variables["JAX_COORDINATOR_ADDRESS"] != f"127.0.0.1:{rendezvous.port}"
    rendezvous.close()


def test_with_all_gpus_visible_the_local_rank_is_the_rank() -> None:
    rendezvous = Rendezvous()

    variables = rendezvous.environment(1, 2, 0, visible="pool")

    assert (variables["LOCAL_RANK"], variables["LOCAL_WORLD_SIZE"]) == ("1", "2")
    assert (variables["GROUP_RANK"], variables["GROUP_WORLD_SIZE"]) == ("0", "1")
    rendezvous.close()


def test_on_several_hosts_the_local_rank_is_that_of_the_host() -> None:
    rendezvous = Rendezvous()
    place = HostPlace(local_rank=1, local_size=2, group=2, num_groups=3)

    own = rendezvous.environment(5, 6, 0, place=place)
    pool = rendezvous.environment(5, 6, 0, place=place, visible="pool")

    assert (own["MGPU_LOCAL_RANK"], own["LOCAL_RANK"], own["GROUP_RANK"]) == ("1", "0", "5")
    assert (pool["LOCAL_RANK"], pool["LOCAL_WORLD_SIZE"]) == ("1", "2")
    assert (pool["GROUP_RANK"], pool["GROUP_WORLD_SIZE"]) == ("2", "3")
    rendezvous.close()


@pytest.mark.parametrize(("visible", "num_gpus"), [("own", 1), ("pool", 2)])
def test_a_script_for_torchrun_finds_its_gpu(visible: Visible, num_gpus: int) -> None:
    rendezvous = Rendezvous()
    gpus = list(range(num_gpus))  # what this rank sees: its own one, or all of the pool

    for rank in (0, 1):
        variables = rendezvous.environment(rank, 2, 0, visible=visible)

        assert int(variables["LOCAL_RANK"]) in gpus  # torch.cuda.set_device would raise
        assert int(variables["LOCAL_RANK"]) < int(variables["LOCAL_WORLD_SIZE"]) == num_gpus
        num_nodes = int(variables["GROUP_WORLD_SIZE"])
        assert num_nodes * int(variables["LOCAL_WORLD_SIZE"]) == int(variables["WORLD_SIZE"])
    rendezvous.close()


def test_a_setting_of_the_user_wins() -> None:
    rendezvous = Rendezvous()

    variables = rendezvous.environment(0, 1, 0, user_environment={"NCCL_SOCKET_IFNAME": "eth7"})

    assert variables["NCCL_SOCKET_IFNAME"] == "eth7"
    rendezvous.close()


def test_the_port_is_bound_at_once_and_free_after_close() -> None:
    rendezvous = Rendezvous()

    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", rendezvous.port))
    rendezvous.close()

    with socket.socket() as other:
        other.bind(("127.0.0.1", rendezvous.port))


def test_no_store_runs_before_the_first_connection_and_torch_is_not_imported() -> None:
    source = (
        "import asyncio, sys\n"
        "from jupyter_mgpu.rendezvous import Rendezvous\n"
        "async def main():\n"
        "    rendezvous = Rendezvous()\n"
        "    rendezvous.watch(asyncio.get_running_loop())\n"
        "    await asyncio.sleep(0)\n"
        "    assert rendezvous.store_pid is None\n"
        "    rendezvous.close()\n"
        "asyncio.run(main())\n"
        "assert 'torch' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)


def test_two_pools_at_once_do_not_meet() -> None:
    one = shared_pool()
    with plain_pool() as other:
        one.run(INIT)
        other.run(INIT)

        assert [reply["out"] for reply in one.results() + other.results()] == [2.0] * 4


def test_a_killed_store_is_replaced_at_the_next_connection() -> None:
    pool = shared_pool()
    pool.values(INIT)
    killed = pool.rendezvous.store_pid
    assert killed is not None

    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: pool.rendezvous.store_pid != killed)

    # The group needs no store; a new one does, and finds the same port served again.
    assert pool.values("x.fill_(1); dist.all_reduce(x); out = x.item()") == [2.0, 2.0]
    assert pool.values("dist.destroy_process_group()") == [None, None]
    assert pool.values(INIT) == [2.0, 2.0]


def test_the_store_ends_with_its_owner(loop: asyncio.AbstractEventLoop) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rendezvous = Rendezvous(owner=f"{owner.pid}:{guard.start_time(owner.pid)}")
    loop.call_soon_threadsafe(rendezvous.watch, loop)
    loop.call_soon_threadsafe(rendezvous.start_store)
    wait_until(lambda: rendezvous.store_pid is not None)
    store_pid = rendezvous.store_pid

    owner.kill()
    owner.wait()

    wait_until(lambda: rendezvous.store_pid != store_pid)
    loop.call_soon_threadsafe(rendezvous.close)


def test_the_store_starts_early_where_the_notebook_has_torch() -> None:
    store = "mgpu.current_pool().owner.plan.rendezvous.store_pid"
    with notebook() as nb:
        nb.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 1")
        assert nb.value(store) is None

        nb.check("import torch", timeout=120)

        wait_until(lambda: nb.value(store) is not None)
