"""Kept pools in tests: real kernels that die, others that attach, and nothing left behind."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jupyter_mgpu import control
from notebooks import Notebook, is_alive, notebook, wait_until

LOAD = "%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu, os, sys, threading, time"


@contextlib.contextmanager
def kernel(cwd: str | None = None) -> Iterator[Notebook]:
    """A notebook with the extension loaded."""
    with notebook(cwd=cwd) as nb:
        nb.check(LOAD)
        yield nb


@contextlib.contextmanager
def killed_kernel(
    code: str,
    *,
    name: str = "night",
    size: int = 2,
    options: str = "",
    cwd: str | None = None,
) -> Iterator[Notebook]:
    """A kernel that has started a kept pool, run some code, and was killed; the pool ends after.

    Args:
        code: What it runs.
        name: The pool's name.
        size: How many engines.
        options: Further options of its `%parpool`.
        cwd: The kernel's folder.
    """
    with ended_later(name):
        with kernel(cwd) as nb:
            nb.check(f"%parpool {size} --keep --name {name} {options}\npool = mgpu.current_pool()")
            nb.check(code)
            nb.kill()
            wait_until(lambda: not is_alive(nb.pid), 60, "the kernel's end")
        yield nb


@contextlib.contextmanager
def ended_later(name: str) -> Iterator[None]:
    """Stop a kept pool afterwards, if it is still there."""
    try:
        yield
    finally:
        for pool in control.find_pools():
            if pool.name == name:
                control.stop(pool)


@dataclass
class Traces:
    """All that a kept pool has put on this machine."""

    pids: list[int]
    folder: Path
    record: Path

    def left(self) -> list[str]:
        """Say what is still there."""
        processes = [f"{pid}: {_command(pid)}" for pid in self.pids if is_alive(pid)]
        return [*processes, *(str(path) for path in (self.folder, self.record) if path.exists())]

    def wait_until_gone(self, timeout: float = 60) -> None:
        """Wait until nothing is left."""
        try:
            wait_until(lambda: not self.left(), timeout)
        except TimeoutError:
            raise AssertionError(f"left after {timeout} s: {self.left()}") from None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return "gone"


def traces_of(name: str) -> Traces:
    """Find the processes and files of a kept pool."""
    import psutil

    pool = control.named(name)
    keeper = psutil.Process(pool.kernel_pid)
    pids = [keeper.pid, *(child.pid for child in keeper.children(recursive=True))]
    return Traces(pids, pool.folder, pool.record_path)


def record_of(name: str) -> dict[str, object]:
    """Read a pool's record."""
    return dict(json.loads(control.named(name).record_path.read_text()))
