"""Waiting until GPUs are free."""

import os
import signal

from gpu_stubs import CHOOSE, gpus, other_pool

WAIT = (
    CHOOSE
    + """
import signal
# As in a kernel: a test run that was started in the background passes on that SIGINT is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from jupyter_mgpu.gpus import wait_for_free
say = lambda words: print(words, flush=True)
choice = wait_for_free(Request(gpus="0"), on_wait=say, poll_s=0.1, timeout=%s)
print(choice.slots[0].environment["CUDA_VISIBLE_DEVICES"], flush=True)
"""
)


def test_waiting_names_the_holder_and_goes_on_when_the_gpu_is_freed(gpu_machine):
    machine = gpu_machine(gpus(1))

    with machine.foreign_process(0) as pid, machine.start(WAIT % 30) as waiting:
        told = waiting.stdout.readline()
        machine.remove(f"process 0 pid={pid} memory=1024")
        output, errors = waiting.communicate(timeout=30)

    assert told.startswith("Waiting: GPU 0 is used by ")
    assert f"pid {pid}" in told
    assert output.strip() == "0", errors


def test_waiting_ends_when_the_other_pool_does(gpu_machine):
    machine = gpu_machine(gpus(1))

    with other_pool(machine, pool="theirs") as (pid, _), machine.start(WAIT % 30) as waiting:
        told = waiting.stdout.readline()
        os.kill(pid, signal.SIGKILL)
        output, errors = waiting.communicate(timeout=30)

    assert "pool 'theirs'" in told
    assert output.strip() == "0", errors


def test_waiting_gives_up_in_time_and_names_the_holder(gpu_machine):
    machine = gpu_machine(gpus(1))

    with machine.foreign_process(0) as pid, machine.start(WAIT % 0.3) as waiting:
        _, errors = waiting.communicate(timeout=30)

    assert "GpuBusyError" in errors
    assert f"pid {pid}" in errors


def test_waiting_can_be_interrupted(gpu_machine):
    machine = gpu_machine(gpus(1))

    with machine.foreign_process(0), machine.start(WAIT % 60) as waiting:
        waiting.stdout.readline()
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=30)

    assert "KeyboardInterrupt" in errors
    assert list(machine.lease_folder.glob("*.lease")) == []
