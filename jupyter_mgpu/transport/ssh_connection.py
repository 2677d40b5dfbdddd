"""One ssh connection to one host, over which all commands and forwarded ports go.

The user's own ssh and ssh_config are used, without questions. The connection is a process of this
machine that ends with the one that made it, however that ends, and runs nothing on the host.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import HostUnreachableError, PoolStartError

CONNECT_S = 10
ALIVE_S, MISSED_ALIVE = 4, 2
"""A cut link ends the connection after the product of both."""
COMMAND_S = 60.0
END_S = 2.0
CONNECTION_LOST = 255
"""What ssh itself exits with; else it is the command's exit code."""
_LAST_LINES = 5
# No questions, no terminal, and no command that ssh_config may have for people.
_QUIET = (
    *("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"),
    *("-o", "RemoteCommand=none", "-T"),
)
_PAUSE_S = 0.01

# The signal comes when the thread ends that started it, so that thread lives as long.
_END_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
if os.getppid() == int(sys.argv[1]):
    os.execvp("ssh", sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class SshTarget:
    """What ssh is told.

    Attributes:
        host: The host's name, for people.
        target: A host name, `user@host`, or a name of ssh_config.
        arguments: Further arguments of ssh, such as `-F file`.
    """

    host: str
    target: str
    arguments: tuple[str, ...] = ()


class SshConnection:
    """A connection that is made at first use, and again when it has been lost.

    Its methods block; any thread may call them.

    Args:
        target: Where it leads.
        socket: Its control socket: a short path, in a folder that only this user may enter.
    """

    def __init__(self, target: SshTarget, socket: Path) -> None:
        self.target = target
        self._socket = socket
        self._master: _Master | None = None
        self._forwards: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def arguments(self) -> list[str]:
        """The arguments that let an ssh command use this connection, without the target."""
        return [
            *self.target.arguments,
            *_QUIET,
            *("-o", "ControlMaster=no", "-o", f"ControlPath={self._socket}"),
        ]

    def connect(self) -> None:
        """Connect, unless that is done.

        Raises:
            HostUnreachableError: If the host does not answer.
            PoolStartError: If it refuses; both say what to do.
        """
        with self._lock:
            if self._master is None or self._master.words is not None:
                self._close()
                self._connect()

    def _connect(self) -> None:
        if shutil.which("ssh") is None:
            raise PoolStartError(
                f"{self.target.host} cannot be reached: there is no program ssh here. "
                "Install OpenSSH's client."
            )
        command = [
            *("ssh", *self.target.arguments),
            *_QUIET,
            *("-o", "ControlMaster=yes", "-o", f"ControlPath={self._socket}"),
            *("-o", "ControlPersist=no", "-o", "ForkAfterAuthentication=no", "-N"),
            *("-o", f"ServerAliveInterval={ALIVE_S}", "-o", f"ServerAliveCountMax={MISSED_ALIVE}"),
            self.target.target,
        ]
        self._master = _Master(command)
        while not self._socket.exists():  # it makes that when it has been let in
            if self._master.words is not None:
                raise self._explain(self._master.words)
            time.sleep(_PAUSE_S)

    def _explain(self, words: str) -> PoolStartError:
        """Turn ssh's last words into an error that says what to do."""
        host, target = self.target.host, self.target.target
        said = "; ".join(words.strip().splitlines()[-_LAST_LINES:]) or "nothing"
        by_hand = " ".join(["ssh", *self.target.arguments, target])
        if "Host key verification failed" in words or "IDENTIFICATION HAS CHANGED" in words:
            return PoolStartError(
                f"{host} is not known to ssh, or has another key than before. Run `{by_hand}` "
                f"once in a terminal and check its key. ssh said: {said}"
            )
        if "Permission denied" in words or "Too many authentication" in words:
            return PoolStartError(
                f"{host} refuses the login. A key must let you in without a question: try "
                f"`{by_hand} true` in a terminal; ssh-add or ssh-copy-id help. ssh said: {said}"
            )
        if "Bad configuration option" in words or "command-line" in words:
            return PoolStartError(
                f"ssh does not understand its options for {host}. ssh said: {said}"
            )
        return HostUnreachableError(
            f"{host} cannot be reached by ssh as {target}. Check its name and the network with "
            f"`{by_hand} true`. ssh said: {said}",
            host=host,
        )

    def run(self, command: Sequence[str], text: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a command there.

        Args:
            command: The command; words with spaces must be quoted for the host's shell.
            text: Its standard input.

        Returns:
            What it printed, and its exit code.

        Raises:
            HostUnreachableError: If the host does not answer.
        """
        self.connect()
        try:
            done = subprocess.run(
                ["ssh", *self.arguments, self.target.target, *command],
                input=text,
                capture_output=True,
                text=True,
                timeout=COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HostUnreachableError(
                f"{self.target.host} did not run {command[0]!r} within {COMMAND_S:g} s. Look at "
                "its load, and try again.",
                host=self.target.host,
            ) from None
        if done.returncode == CONNECTION_LOST:
            raise self._explain(done.stderr)
        return done

    def forward(self, url: str) -> str:
        """Make a port of this machine reachable on the host.

        Args:
            url: The port's, such as `tcp://127.0.0.1:4711`.

        Returns:
            Its url there.

        Raises:
            PoolStartError: If sshd there does not allow that.
        """
        self.connect()
        with self._lock:
            if url not in self._forwards:
                self._forwards[url] = self._forward(url)
            return self._forwards[url]

    def _forward(self, url: str) -> str:
        address = url.removeprefix("tcp://")
        done = subprocess.run(
            [
                *("ssh", *self.arguments, "-O", "forward", "-R", f"127.0.0.1:0:{address}"),
                self.target.target,
            ],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        port = done.stdout.strip()
        if done.returncode or not port.isdigit():
            raise PoolStartError(
                f"{self.target.host} does not forward a port to this machine: "
                f"{done.stderr.strip()}. Its sshd must allow it (AllowTcpForwarding)."
            )
        return f"tcp://127.0.0.1:{port}"

    def _close(self) -> None:
        master, self._master = self._master, None
        self._forwards.clear()
        if master is not None:
            master.end()
        self._socket.unlink(missing_ok=True)  # one that was killed leaves it

    def close(self) -> None:
        """End the connection, and whatever is forwarded over it."""
        with self._lock:
            self._close()


class _Master:
    """The process that holds the connection, and the thread that waits for its end.

    Attributes:
        words: What it said before it ended; None while it runs.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.words: str | None = None
        self._process: subprocess.Popen[str] | None = None
        self._ended = call_in_thread(lambda: self._hold(command), "mgpu-ssh")

    def _hold(self, command: Sequence[str]) -> None:
        words = ""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in a terminal is for the kernel
                text=True,
            )
            _, words = self._process.communicate()
        finally:
            self.words = words

    def end(self) -> None:
        """End it, and wait for that."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                self._ended.result(END_S)
