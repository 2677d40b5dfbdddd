"""Idle culling by a real Jupyter server: a kernel is at work while its tasks are."""

import contextlib
import json
import re
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import websocket
from free_ports import free_port

from jupyter_mgpu import tasks
from notebooks import is_alive, wait_until

CULL_IDLE_S = 20
TASK_S = 30  # two of them, one after the other: the second waits and runs past any idle time-out
LEEWAY_S = 60


@dataclass
class Server:
    """A Jupyter server without a browser."""

    port: int
    token: str

    def call(self, method: str, path: str) -> Any:
        """Call the REST interface."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/{path}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def is_up(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.call("GET", "status"))
        return False

    def run(self, kernel_id: str, code: str) -> str:
        """Run a cell as a browser does, then close the connection; return what it printed."""
        url = f"ws://127.0.0.1:{self.port}/api/kernels/{kernel_id}/channels?token={self.token}"
        connection = websocket.create_connection(url, timeout=60)
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "session": uuid.uuid4().hex,
            "username": "",
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        connection.send(json.dumps({**message, "channel": "shell", "buffers": []}))
        printed = ""
        left = {"the reply", "the end of what it prints"}  # two channels: either may come first
        try:
            while left:
                answer = json.loads(connection.recv())
                if answer["parent_header"].get("msg_id") != header["msg_id"]:
                    continue
                printed += answer["content"].get("text", "")
                if answer["content"].get("execution_state") == "idle":
                    left.discard("the end of what it prints")
                if answer["channel"] == "shell":
                    assert answer["content"]["status"] == "ok", answer["content"]
                    left.discard("the reply")
        finally:
            connection.close()
        return printed


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(free_port(), uuid.uuid4().hex)
    command = [
        *(sys.executable, "-m", "jupyter_server"),
        *("--allow-root", "--no-browser", "--ServerApp.ip=127.0.0.1"),
        f"--ServerApp.port={found.port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={tmp_path}",
        "--ServerApp.jpserver_extensions={}",
        f"--IdentityProvider.token={found.token}",
        f"--MappingKernelManager.cull_idle_timeout={CULL_IDLE_S}",
        "--MappingKernelManager.cull_interval=1",
    ]
    log = tmp_path / "server.log"
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            wait_until(found.is_up, 60, f"the server ({log})")
            yield found
        finally:
            process.terminate()
            process.wait(60)


CELL = """
import json, os, time
%load_ext jupyter_mgpu
import jupyter_mgpu as mgpu
pool = mgpu.parpool(1)
def work(path):
    print("at work", flush=True)
    time.sleep({seconds})
    open(path, "w").close()
    return path
futures = [mgpu.parfeval(work, path, name=path) for path in {paths}]
pids = [os.getpid(), pool.engines[0].pid]
print("<<" + json.dumps(pids) + ">>")
"""


@pytest.mark.timeout(300)
def test_a_kernel_is_culled_after_its_background_tasks_and_not_before(
    server: Server, tmp_path: Path
) -> None:
    markers = [tmp_path / "first", tmp_path / "second"]
    paths = [str(marker) for marker in markers]
    kernel_id = server.call("POST", "kernels")["id"]
    printed = server.run(kernel_id, CELL.format(seconds=TASK_S, paths=paths))
    found = re.search(r"<<(.*)>>", printed)
    assert found is not None, printed
    pids = json.loads(found[1])

    wait_until(markers[1].exists, 2 * TASK_S + LEEWAY_S, "the end of the second task")
    assert all(map(is_alive, pids))
    assert [kernel["id"] for kernel in server.call("GET", "kernels")] == [kernel_id]

    wait_until(lambda: not any(map(is_alive, pids)), CULL_IDLE_S + LEEWAY_S, "the culling")
    wait_until(lambda: server.call("GET", "kernels") == [], 60, "an empty list of kernels")
    for path in paths:
        record = tasks.load(path)
        assert record.state == "finished"
        assert record.result() == path
        assert record.diary == "at work\n"
