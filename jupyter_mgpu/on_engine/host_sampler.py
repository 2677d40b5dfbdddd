"""The sampler of this host, in a process beside an engine's guard, while the owner wants readings.

A process of its own, because it loads NVIDIA's library: where that hangs or crashes, neither the
engine nor its guard does, and it reads on while the engine holds the GIL.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_mgpu import children, curve

MODULE = "jupyter_mgpu.monitor.reporter"
AGAIN_S = 10.0
"""So long after a start that gave no reading it is not tried again."""
_MOST_BYTES = 2**16
_SECRETS = ("MGPU_TOKEN", curve.KEYS_VARIABLE)


class HostSampler:
    """Starts the sampler when it is asked for; it ends by itself when it is not any more.

    Args:
        log: Takes what it writes when it fails.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = float("-inf")
        self._text = b""

    @property
    def output(self) -> int | None:
        """The descriptor on which its readings come, None while it does not run."""
        process = self._process
        return None if process is None or process.stdout is None else process.stdout.fileno()

    def ask(self, wish: Mapping[str, Any]) -> None:
        """Have it go on for some seconds, with these engines."""
        if self._process is None and time.monotonic() - self._started_s > AGAIN_S:
            self._start()
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has just ended, or hangs
                os.write(self._process.stdin.fileno(), json.dumps(wish).encode() + b"\n")

    def _start(self) -> None:
        self._started_s, self._text = time.monotonic(), b""
        environment = {n: value for n, value in os.environ.items() if n not in _SECRETS}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE],
                env={**environment, "PYTHONPATH": children.python_path()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)

    def readings(self) -> list[bytes] | None:
        """Return the readings that have come, None when it has ended."""
        descriptor = self.output
        try:
            got = b"" if descriptor is None else os.read(descriptor, _MOST_BYTES)
        except BlockingIOError:
            return []
        if not got:
            return None
        *lines, self._text = (self._text + got).split(b"\n")
        if lines:
            self._started_s = float("-inf")  # it works, and may be started again when it ends
        return lines

    def take_end(self) -> str | None:
        """Forget the process that has ended; return why, if it should not have."""
        process, self._process = self._process, None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if process.wait(0.1) == 0:
                return None
        words: list[str] = []
        with contextlib.suppress(OSError):
            words = self._log.read_text(errors="replace").strip().splitlines()
        return words[-1] if words else f"its sampler ended with code {process.returncode}"
