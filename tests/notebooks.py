"""A real notebook kernel for tests: run cells, read their outputs, press Stop."""

import contextlib
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.manager import KernelManager


@dataclass
class Cell:
    """What one cell gave."""

    msg_id: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.reply.get("status") == "ok"

    @property
    def ename(self) -> str:
        return str(self.reply.get("ename", ""))

    @property
    def evalue(self) -> str:
        return str(self.reply.get("evalue", ""))

    @property
    def traceback(self) -> str:
        return "\n".join(self.reply.get("traceback", []))

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    def _stream(self, name: str) -> str:
        return "".join(
            m["content"]["text"]
            for m in self.messages
            if m["msg_type"] == "stream" and m["content"]["name"] == name
        )

    @property
    def displays(self) -> list[dict[str, Any]]:
        """The last state of each display, in order."""
        found: dict[str, dict[str, Any]] = {}
        for number, message in enumerate(self.messages):
            if message["msg_type"] in ("display_data", "update_display_data"):
                content = message["content"]
                key = content.get("transient", {}).get("display_id") or f"#{number}"
                is_update = message["msg_type"] == "update_display_data"
                if is_update and key.startswith("mgpu-view-") and key not in found:
                    continue  # of a view that an earlier cell has shown
                found[key] = content["data"]
        return list(found.values())

    @property
    def result(self) -> str:
        """text/plain of the last expression."""
        texts = [
            m["content"]["data"].get("text/plain", "")
            for m in self.messages
            if m["msg_type"] == "execute_result"
        ]
        return texts[-1] if texts else ""

    @property
    def text(self) -> str:
        """All that a reader sees, as plain text."""
        parts = [self._stream("stdout"), self._stream("stderr")]
        parts += [data.get("text/plain", "") for data in self.displays]
        return "\n".join([*parts, self.result])


class Notebook:
    """One kernel."""

    def __init__(self, environment: dict[str, str] | None = None, cwd: str | None = None) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, **(environment or {})}, cwd=cwd)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(60)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def submit(self, code: str, *, stop_on_error: bool = False) -> Cell:
        """Send a cell without waiting for it.

        With `stop_on_error` its error ends the cells that wait behind it, as in Run All; and also
        one that is sent at once after it, since a kernel forgets the error a moment later.
        """
        return Cell(self.client.execute(code, allow_stdin=False, stop_on_error=stop_on_error))

    def wait(self, cell: Cell, timeout: float = 60) -> Cell:
        """Wait for a cell's reply and for its last output."""
        begun = time.monotonic()
        idle = any(m["content"].get("execution_state") == "idle" for m in cell.messages)
        while not (idle and cell.reply):
            left = timeout - (time.monotonic() - begun)
            if left <= 0:
                raise TimeoutError(f"no reply after {timeout} s; so far: {cell.text[-2000:]}")
            with contextlib.suppress(queue.Empty):
                message = self.client.get_iopub_msg(timeout=0.02)
                if message["parent_header"].get("msg_id") == cell.msg_id:
                    cell.messages.append(message)
                    content = message["content"]
                    idle = idle or content.get("execution_state") == "idle"
            if not cell.reply:
                with contextlib.suppress(queue.Empty):
                    reply = self.client.get_shell_msg(timeout=0)
                    if reply["parent_header"].get("msg_id") == cell.msg_id:
                        cell.reply = reply["content"]
                        cell.seconds = time.monotonic() - begun
        return cell

    def run(self, code: str, timeout: float = 60) -> Cell:
        """Run a cell to its end."""
        return self.wait(self.submit(code), timeout)

    def check(self, code: str, timeout: float = 60) -> Cell:
        """Run a cell that must succeed."""
        cell = self.run(code, timeout)
        assert cell.ok, f"{cell.ename}: {cell.evalue}\n{cell.traceback}\n{cell.text}"
        return cell

    def value(self, expression: str, timeout: float = 60) -> Any:
        """Evaluate an expression in the kernel; its value must be a plain literal."""
        import ast

        cell = self.check(f"print('<<' + repr({expression}) + '>>')", timeout)
        # Beside it may stand what a pool has just told of itself.
        return ast.literal_eval(cell.stdout.partition("<<")[2].rpartition(">>")[0])

    def wait_for_output(self, cell: Cell, text: str, timeout: float = 60) -> None:
        """Wait until a running cell has shown some text."""
        self.wait_for(cell, lambda: text in cell.text, timeout, repr(text))

    def wait_for(
        self, cell: Cell, condition: Callable[[], bool], timeout: float = 60, what: str = "it"
    ) -> None:
        """Wait until what a running cell shows fulfils a condition."""
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > timeout:
                raise TimeoutError(f"{what} was not shown within {timeout} s: {cell.text[-2000:]}")
            with contextlib.suppress(queue.Empty):
                message = self.client.get_iopub_msg(timeout=0.05)
                if message["parent_header"].get("msg_id") == cell.msg_id:
                    cell.messages.append(message)

    def stop(self) -> None:
        """Press Stop."""
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        """End the kernel without a chance to clean up."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=not self.manager.is_alive())


@contextlib.contextmanager
def notebook(
    environment: dict[str, str] | None = None, cwd: str | None = None
) -> Iterator[Notebook]:
    """A kernel for the length of a with-block."""
    opened = Notebook(environment, cwd)
    try:
        yield opened
    finally:
        opened.close()


def wait_until(condition: Any, timeout: float = 60, what: str = "the condition") -> None:
    """Poll until a condition of another process holds."""
    import threading

    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {timeout} s")
        pause.wait(0.02)


def wait_for_file(path: Any) -> None:
    """Wait until a file is there, on an engine as well: a test lets it go on so."""
    wait_until(path.exists, 60, str(path))


def is_alive(pid: int) -> bool:
    """Tell whether a process has not ended; a zombie has."""
    from pathlib import Path

    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
