"""Starts engines on a host through ipyparallel's ssh launcher, over one connection."""

import asyncio
import contextlib
import shlex
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from ipyparallel.cluster.launcher import SSHEngineLauncher
from ipyparallel.cluster.shellcmd import ShellCommandSend

from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import HostUnreachableError, PoolStartError
from jupyter_mgpu.on_engine import lifeline, orders
from jupyter_mgpu.transport import quiet_log
from jupyter_mgpu.transport.placement import Order
from jupyter_mgpu.transport.ssh_connection import CONNECTION_LOST, SshConnection

MOST_AT_ONCE = 8
"""sshd grants 10 sessions in a connection by default (MaxSessions)."""


class _QuietSender(ShellCommandSend):
    """Sends commands to a host, and shows the notebook nothing of what ssh says."""

    def _check_output(self, cmd: list[str], **options: Any) -> Any:
        return super()._check_output(cmd, stderr=subprocess.PIPE, **options)


class PoolSshEngineLauncher(SSHEngineLauncher):
    """Starts one engine: one command over ssh, no files, nobody who asks whether it still runs."""

    @property
    def ssh_sender(self) -> _QuietSender:
        """What sends commands; the base would first ask which shell and Python there are."""
        sender = _QuietSender(
            *(self.ssh_cmd, [*self.ssh_args, self.location], self.remote_python),
            initialize=False,
            send_receiver_code=True,  # else ipyparallel would be imported there each time
            log=self.log,
        )
        sender.shell_info = ("linux", "sh")
        return sender

    def start(self, *_args: Any, **_keys: Any) -> None:
        """Start the engine, and return when its process runs."""
        self.pid = self.ssh_sender.cmd_start(self.engine_cmd, env=self.get_env())
        self.notify_start({"host": self.location, "pid": self.pid})


class SshLauncher:
    """Starts the engines of one host; see `placement.Launcher`.

    Args:
        connection: Leads to the host.
        python: The interpreter there.
        tunnel: Whether engines reach this machine over the connection only.

    Attributes:
        connection: Likewise.
    """

    def __init__(self, connection: SshConnection, python: str, *, tunnel: bool = False) -> None:
        self.connection = connection
        self._python = python
        self._tunnel = tunnel
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def start(self, order: Order) -> "SshLaunched":  # noqa: D102 - as in Launcher
        async with self._turns:
            starting = call_in_thread(lambda: self._start(order), "mgpu-ssh-start")
            return SshLaunched(await asyncio.wrap_future(starting))

    def _start(self, order: Order) -> PoolSshEngineLauncher:
        self.connection.connect()
        environment = dict(order.environment)
        if self._tunnel:
            environment |= self._forward(environment)
        launcher = PoolSshEngineLauncher(
            ssh_args=self.connection.arguments,
            remote_python=shlex.quote(self._python),
            hostname=self.connection.target.target,
            engine_cmd=[self._python, *order.command],
            environment=orders.fold([environment]),
            to_send=[],
            log=quiet_log.LOG,
        )
        try:
            launcher.start()
        except (subprocess.CalledProcessError, RuntimeError) as error:
            if getattr(error, "returncode", None) == CONNECTION_LOST:
                raise HostUnreachableError(
                    f"The connection to {self.connection.target.host} was lost while the engine "
                    f"of rank {order.rank} was started.",
                    host=self.connection.target.host,
                ) from error
            raise PoolStartError(
                f"The engine of rank {order.rank} could not be started on "
                f"{self.connection.target.host} with {self._python}: "
                f"{getattr(error, 'stderr', '') or error}. Try that Python there by hand."
            ) from error
        return launcher

    def _forward(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Forward the ports of the owner and of the ranks' store to the host."""
        url = self.connection.forward(environment["MGPU_URL"])
        store = self.connection.forward(f"tcp://{environment['MGPU_STORE']}")
        place = store.removeprefix("tcp://")
        return {
            "MGPU_URL": url,
            lifeline.URL_VARIABLE: url,
            "MGPU_STORE": place,
            "MASTER_PORT": place.rpartition(":")[2],
        }

    async def close(self) -> None:  # noqa: D102 - as in Launcher
        await asyncio.wrap_future(call_in_thread(self.connection.close, "mgpu-ssh-close"))


class SshLaunched:
    """An engine that was started by ssh."""

    def __init__(self, launcher: PoolSshEngineLauncher) -> None:
        self._launcher = launcher

    def kill(self) -> None:  # noqa: D102 - as in Launched
        def kill() -> None:
            with contextlib.suppress(subprocess.CalledProcessError, OSError):
                self._launcher.signal(signal.SIGKILL)

        call_in_thread(kill, "mgpu-ssh-kill")

    async def explain(  # noqa: D102 - as in Launched
        self, _silent: str | None, _silent_s: float, /
    ) -> str | None:
        return None

    def note(self) -> str | None:  # noqa: D102 - as in Launched
        return None
