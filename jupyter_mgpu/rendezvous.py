"""Rendezvous: where the ranks of a pool meet, and the environment that tells them.

    kernel or owner              store process                engines
    bind MASTER_PORT, listen  <----------------------------   connect (waits in the backlog)
    connection seen   -- fd -->  TCPStore takes the socket -> accepted, served
    end seen          <--------  (killed, crashed)
    connection seen   -- fd -->  a new TCPStore

The port is bound as long as the pool lives, so no two pools can meet each other's ranks and no
start can lose its port. Nothing here imports torch: the store process does, at first use.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from dataclasses import astuple
from typing import IO, Literal

from jupyter_mgpu import children
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.on_engine import guard

Visible = Literal["own", "pool"]

NCCL_SETTINGS: Mapping[str, str] = {
    # 2 = clean up only: a collective that timed out frees the GPU, and the process lives.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    # The monitor thread ends the process when the watchdog thread seems stuck, as it does while
    # a cell holds the GIL for minutes.
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # A CUDA error is raised where the user's code meets it, not in the watchdog's thread.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
"""torch's own guards, set so that none of them ends an idle or interrupted engine."""

QUIET_SETTINGS: Mapping[str, str] = {
    # Else each aborted wait on the store prints 30 lines of C++ frames into the cell.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}

RESTART_DELAY_S = 1.0
QUICK_END_S = 5.0


class Rendezvous:
    """A bound port that turns into a torch store at the first connection.

    Make it before the engines; call `watch` in the loop that owns the pool, and `close` there.

    Args:
        address: The address to listen on, which every engine can reach.
        run_id: What tells this pool's ranks from another's; random by default.
        owner: `pid:starttime` of the process whose end also ends the store; this process by
            default.
    """

    def __init__(
        self, address: str = "127.0.0.1", *, run_id: str | None = None, owner: str | None = None
    ) -> None:
        self.address = address
        self.run_id = run_id or uuid.uuid4().hex
        self._owner = owner or guard.owner_stamp()
        self._socket = _listen(address)
        self.port: int = self._socket.getsockname()[1]
        self._jax_port = _free_port(address)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._last_words = ""
        self._started_at = 0.0
        self._num_quick_ends = 0
        self._closed = False

    @property
    def store_pid(self) -> int | None:
        """The store's process, or None while no engine has needed one."""
        return self._store.pid if self._store is not None else None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the store when the first engine connects. Call it in the loop's thread."""
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self.start_store)

    def start_store(self) -> None:
        """Start the store process now, if none runs. Call it in the loop's thread.

        Worth calling early where the kernel has torch loaded: the store needs a second to
        import torch.
        """
        if self._store is not None or self._closed or self._loop is None:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._started_at = self._loop.time()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed when the store has ended
        self._store = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "jupyter_mgpu.on_engine.store"),
                *(self.address, str(self.port), str(self._socket.fileno())),
            ],
            pass_fds=[self._socket.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=_store_environment(self._owner),
            start_new_session=True,
        )
        threading.Thread(
            target=self._wait_for_store, args=(self._store, self._loop), daemon=True
        ).start()

    @property
    def last_words(self) -> str:
        """The end of what a store process wrote before it ended, to explain why it did."""
        return self._last_words

    def close(self) -> None:
        """End the store and free the port. Call it in the loop's thread."""
        if self._closed:
            return
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._store is not None:
            self._store.kill()
            self._store.wait()
        if self._log is not None:
            self._log.close()

    def environment(
        self,
        rank: int,
        world_size: int,
        generation: int,
        *,
        visible: Visible = "own",
        shares_gpu: bool = False,
        place: HostPlace | None = None,
        user_environment: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Say to an engine who it is and where the others are.

        Args:
            rank: The engine's position among the ranks of this group.
            world_size: How many ranks there are.
            generation: Raised whenever a group of this pool may not be used again.
            visible: `own` if the engine sees its own GPU only, `pool` if it sees all of them.
            shares_gpu: Whether several engines share a GPU, where NCCL cannot be used.
            place: The engine's place among the hosts; without it, all ranks share one.
            user_environment: Where settings of the user are looked up; they win.

        Returns:
            The variables that torchrun, and JAX's own start, would have set.
        """
        user = os.environ if user_environment is None else user_environment
        place = place or HostPlace(rank, world_size)
        local = (0, 1, rank, world_size) if visible == "own" else astuple(place)
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(local[0]),
            "LOCAL_WORLD_SIZE": str(local[1]),
            "GROUP_RANK": str(local[2]),
            "GROUP_WORLD_SIZE": str(local[3]),
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(generation),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "MGPU_STORE": f"{self.address}:{self.port}",
            "MGPU_LOCAL_RANK": str(place.local_rank),
            "MGPU_SHARES_GPU": str(int(shares_gpu)),
            "JAX_COORDINATOR_ADDRESS": f"{self.address}:{self._jax_port}",
            # Else it listens on all interfaces.
            "JAX_COORDINATOR_BIND_ADDRESS": f"{self.address}:{self._jax_port}",
            "JAX_PROCESS_ID": str(rank),
            "JAX_NUM_PROCESSES": str(world_size),
        }
        defaults = {**NCCL_SETTINGS, **QUIET_SETTINGS}
        if self.address.startswith("127."):
            # gloo and NCCL would look up the host's name, which may lead nowhere.
            defaults |= {"GLOO_SOCKET_IFNAME": _loopback(), "NCCL_SOCKET_IFNAME": _loopback()}
        return variables | {name: user.get(name, value) for name, value in defaults.items()}

    def _wait_for_store(
        self, store: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop
    ) -> None:
        store.wait()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._store_ended)

    def _store_ended(self) -> None:
        if self._closed or self._loop is None:
            return
        self._store = None
        if self._log is not None:
            self._last_words = os.pread(self._log.fileno(), 100_000, 0)[-2000:].decode(
                "utf-8", "replace"
            )
            self._log.close()
            self._log = None
        # A store that cannot start must not be started in a busy loop: the connection that
        # asked for it still waits in the backlog.
        is_quick = self._loop.time() - self._started_at < QUICK_END_S
        self._num_quick_ends = self._num_quick_ends + 1 if is_quick else 0
        delay_s = RESTART_DELAY_S * (self._num_quick_ends - 1) if is_quick else 0.0
        self._loop.call_later(delay_s, self._watch_again)

    def _watch_again(self) -> None:
        if self._store is None and not self._closed and self._loop is not None:
            self._loop.add_reader(self._socket.fileno(), self.start_store)


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(1024)
    return listener


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port


def _loopback() -> str:
    return "lo" if sys.platform == "linux" else "lo0"


def _store_environment(owner: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": children.python_path(),
        "MGPU_OWNER": owner,
        "CUDA_VISIBLE_DEVICES": "",  # the store needs no GPU and must not touch one
        "OMP_NUM_THREADS": "1",
    }
