"""A notebook's host that sleeps, as a closed laptop does, while engines run elsewhere."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from notebooks import is_alive, wait_until

OWNER = """
import time
from far_pools import Loopback, far_plan, far_pool
import jupyter_mgpu as mgpu
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.errors import EngineDiedError
from jupyter_mgpu.transport.placement import Placement

if __name__ == "__main__":
    there = Placement("elsewhere", Loopback())
    with far_pool([far_plan(0, there, HostPlace(0, 1, 0, 1))]) as pool:
        task = mgpu.parfeval(time.sleep, 600)
        while task.state != "running":
            time.sleep(0.01)
        print("pid", pool.engines[0].pid, flush=True)
        try:
            task.result(60)
        except EngineDiedError as error:
            print("died", error, flush=True)
        print("again", mgpu.parfeval(lambda: 7).result(60), pool.engines[0].starts, flush=True)
"""


def test_engines_end_while_it_sleeps_and_are_named_and_replaced_when_it_wakes() -> None:
    # A stopped process answers nobody and counts no time, as one of a host that sleeps.
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=variables
    )
    assert owner.stdout is not None
    pid = int(next(line for line in owner.stdout if line.startswith("pid")).split()[1])

    owner.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: not is_alive(pid), 40, "the end of the engine that nobody owns")
    finally:
        owner.send_signal(signal.SIGCONT)

    said, _ = owner.communicate(timeout=100)
    lines = said.splitlines()
    died = next(line for line in lines if line.startswith("died"))
    assert died.startswith("died The engine of rank 0 (CPU on elsewhere")
    assert " was ended, since elsewhere had not heard of this machine for 8 s (it slept" in died
    assert lines[-1] == "again 7 1"
