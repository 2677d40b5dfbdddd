"""A Jupyter server with our extension in a process of its own, on any machine, of any user."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import websocket
from free_ports import free_port

from jupyter_mgpu import control
from jupyter_mgpu.on_engine import guard
from notebooks import wait_until

TOKEN = "server-test"
END_S = 60


class RunningServer:
    """A running server, and the requests that a test makes."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self.process = process
        self.url = url
        self.streams: list[websocket.WebSocket] = []

    def request(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Ask, and return the JSON answer; an error status raises."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"token {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read() or b"null")

    def sections(self) -> dict[str, Any]:
        """What it shows now."""
        return self.request("jupyter-mgpu/snapshot")["sections"]

    def stream(self) -> websocket.WebSocket:
        """Open the stream; it is closed with the server."""
        address = self.url.replace("http:", "ws:")
        opened = websocket.create_connection(
            f"{address}jupyter-mgpu/stream?token={TOKEN}", timeout=60, suppress_origin=True
        )
        self.streams.append(opened)
        return opened

    def end(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)


@contextlib.contextmanager
def running_server(
    folder: Path,
    environment: dict[str, str] | None = None,
    base_url: str = "/",
    program: Sequence[str] = ("-m", "jupyter_server"),
) -> Iterator[RunningServer]:
    """Start a server; its kernels end with it.

    Args:
        folder: Where its notebooks are.
        environment: Its variables and those of its kernels, instead of this process's.
        base_url: Below which it answers.
        program: What Python runs.
    """
    port = free_port()
    command = [sys.executable, *program, "--no-browser", "--allow-root"]
    command += ["--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.base_url={base_url}"]
    command += [f"--ServerApp.root_dir={folder}"]
    command += ["--ServerApp.jpserver_extensions={'jupyter_mgpu': True}"]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command,
            # Without the other extensions that are installed here.
            env={**(environment or os.environ), "JUPYTER_NO_CONFIG": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        server = RunningServer(process, f"http://127.0.0.1:{port}{base_url}")
        try:
            wait_until(lambda: _answers(server), 60, "the server")
            yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(END_S)
            for opened in server.streams:
                opened.shutdown()


def _answers(server: RunningServer) -> bool:
    if server.process.poll() is not None:
        raise RuntimeError(f"the server has ended with {server.process.returncode}")
    try:
        return bool(server.request("jupyter-mgpu/hello"))
    except OSError:
        return False


def guards_of(pool: control.FoundPool) -> list[int]:
    """The watchdogs of a pool's engines."""
    engines = {engine.pid for engine in pool.engines}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_guard = (entry / "comm").read_text().strip() == "mgpu-guard"
                if is_guard and int(guard.read_stat(int(entry.name))[1]) in engines:
                    found.append(int(entry.name))
            except (OSError, ProcessLookupError):
                continue
    return found
