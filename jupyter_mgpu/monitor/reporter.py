"""The sampler of another host, as a process that an engine's guard starts: a line per reading.

    standard input: one line of JSON per wish, `{"pool": name, "engines": [[rank, pid], ...]}`
    standard output: one line of JSON per reading, once a second

It ends when nobody has wished for some seconds, or the guard ends. Its main thread only waits for
that, so that a driver that hangs cannot hold it.
"""

import ctypes
import json
import os
import select
import signal
import sys

from jupyter_mgpu.monitor.records import EngineProcess
from jupyter_mgpu.monitor.snapshot import Snapshot
from jupyter_mgpu.monitor.watch import Watch

REST_S = 5.0
_MOST_BYTES = 2**16
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Report until nobody wants it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # also while it is stopped
    engines: list[EngineProcess] = []
    with Watch(engines=lambda: engines, on_sample=_report):
        text = b""
        while select.select([0], [], [], REST_S)[0] and (got := os.read(0, _MOST_BYTES)):
            *lines, text = (text + got).split(b"\n")
            if lines:
                wish = json.loads(lines[-1])
                engines = [EngineProcess(pid, wish["pool"], rank) for rank, pid in wish["engines"]]
    os._exit(0)


def _report(snapshot: Snapshot) -> None:
    sys.stdout.write(f"{snapshot.to_json()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
