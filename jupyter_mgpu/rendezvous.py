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
from collections.abc import Collection, Mapping
from dataclasses import astuple
from typing import IO, Literal

from jupyter_mgpu import children
from jupyter_mgpu.clusters import probe
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.on_engine import guard, owner_address
from jupyter_mgpu.on_engine.owner_address import bracketed

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

LOOPBACK = "127.0.0.1"
BACKLOG = 1024
RESTART_DELAY_S = 1.0
QUICK_END_S = 5.0


class Rendezvous:
    """A bound port that turns into a torch store at the first connection.

    Make it before the engines; call `watch` in the loop that owns the pool, and `close` there.

    Args:
        addresses: Where to listen, for engines to reach it. Of several, engines try which ones
            lead here: it listens when `settle` has been told.
        run_id: What tells this pool's ranks from another's; random by default.
        owner: `pid:starttime` of the process whose end also ends the store; this process by
            default.
    """

    def __init__(
        self, *addresses: str, run_id: str | None = None, owner: str | None = None
    ) -> None:
        self.addresses = addresses or (LOOPBACK,)
        self.run_id = run_id or uuid.uuid4().hex
        self._owner = owner or guard.owner_stamp()
        self._is_settled = len(self.addresses) == 1
        self._socket = _bind(self.addresses[0]) if self._is_settled else probe.bind_all()
        if self._is_settled:
            self._socket.listen(BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        with _bind(self.addresses[0]) as bound:
            self._jax_port: int = bound.getsockname()[1]
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
        if self._is_settled:
            loop.add_reader(self._socket.fileno(), self.start_store)

    def settle(self, used: Collection[str]) -> None:
        """Listen where engines have reached this host, and from then on nowhere else.

        Only one of two sockets of a port may listen, so none does before. Call it in the loop's
        thread, after `watch`.
        """
        if self._is_settled:
            return
        self._is_settled = True
        self.addresses = tuple(a for a in self.addresses if a in used) or self.addresses
        if len(self.addresses) == 1:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            everywhere, self._socket = self._socket, _bind(self.addresses[0], self.port)
            everywhere.close()
        self._socket.listen(BACKLOG)
        self._watch_again()

    def start_store(self) -> None:
        """Start the store process now, if none runs. Call it in the loop's thread.

        Worth calling early where the kernel has torch loaded: the store needs a second to
        import torch.
        """
        if self._store is not None or self._closed or self._loop is None or not self._is_settled:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._started_at = self._loop.time()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed when the store has ended
        self._store = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "jupyter_mgpu.on_engine.store"),
                *(self.addresses[0], str(self.port), str(self._socket.fileno())),
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
        address = self.addresses[0]
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
            "MASTER_ADDR": address,
            "MASTER_PORT": str(self.port),
            "MGPU_STORE": f"{address}:{self.port}",
            "MGPU_LOCAL_RANK": str(place.local_rank),
            "MGPU_SHARES_GPU": str(int(shares_gpu)),
            "JAX_COORDINATOR_ADDRESS": f"{bracketed(address)}:{self._jax_port}",
            # Else it listens on all interfaces.
            "JAX_COORDINATOR_BIND_ADDRESS": f"{bracketed(address)}:{self._jax_port}",
            "JAX_PROCESS_ID": str(rank),
            "JAX_NUM_PROCESSES": str(world_size),
        }
        defaults = {**NCCL_SETTINGS, **QUIET_SETTINGS}
        if not probe.is_loopback(address):
            variables[owner_address.VARIABLE] = ",".join(self.addresses)
        else:
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


def _bind(address: str, port: int = 0) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    if port:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((address, port))
    return bound


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
