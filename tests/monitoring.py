"""A process on a pretended machine that watches it and answers questions about what it sees."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from gpu_stubs import GpuMachine

from notebooks import wait_until

ANSWERING = """
import collections, json, os, sys, threading, time
from jupyter_mgpu.monitor import *
from jupyter_mgpu.monitor import gpu_reading, interval, sampler as sampling_thread, users
from jupyter_mgpu.monitor.sampler import sampler
from jupyter_mgpu.nvml import driver, sampling, sleeping
def threads():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("mgpu-"))
def count_calls(*names):
    # How often pynvml's functions are called; the functions themselves stay.
    import pynvml
    def counted(name, function):
        def call(*args):
            counts[name] += 1
            return function(*args)
        return call
    for name in names:
        setattr(pynvml, name, counted(name, getattr(pynvml, name)))
counts = collections.Counter()
for line in sys.stdin:
    result = None
    exec(json.loads(line))
    print(json.dumps(result), flush=True)
"""


@contextlib.contextmanager
def answering(machine: GpuMachine, **variables: str) -> Iterator[Callable[[str], Any]]:
    """Give a function that runs code in a process on the machine and returns its `result`."""
    with machine.start(ANSWERING, **variables) as process:

        def ask(code: str) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(code) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            return json.loads(line)

        try:
            yield ask
        except BaseException:
            process.kill()
            raise
        finally:
            output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, output + errors


def until(ask: Callable[[str], Any], condition: str, timeout: float = 60) -> None:
    """Wait until an expression is true in that process."""
    wait_until(lambda: ask(f"result = bool({condition})"), timeout, condition)
