"""The sampler on machines of any kind: what it reads, and what it says when it cannot."""

import pytest
from gpu_stubs import gpu, gpu_uuid, gpus

TAKE = """
import json
from jupyter_mgpu.monitor import *
result = take_snapshot().to_dict()
"""


def test_every_number_of_a_gpu_is_read(gpu_machine):
    machine = gpu_machine(
        gpu(0, util=37, used=2048, reserved=600, power=300, temperature=61, throttle=0x24)
    )

    taken = machine.result(TAKE)

    (found,) = taken["gpus"]
    assert found["state"] == "ok"
    assert found["utilization_percent"] == 37
    assert found["memory_used_bytes"] == 2048 * 2**20
    assert found["memory_total_bytes"] == 144384 * 2**20
    assert found["memory_reserved_bytes"] == 600 * 2**20
    assert (found["power_watts"], found["power_limit_watts"]) == (300, 700)
    assert found["temperature_celsius"] == 61
    assert found["throttle"] == ["power cap", "too hot (driver)"]
    assert found["users"] == []
    assert found["reasons"] == {}
    assert found["age_s"] < 3
    assert taken["trouble"] is None


@pytest.mark.parametrize("number", [1, 4, 16])
def test_every_gpu_is_there_in_the_drivers_order(gpu_machine, number):
    taken = gpu_machine(gpus(number)).result(TAKE)

    assert [found["uuid"] for found in taken["gpus"]] == [gpu_uuid(i) for i in range(number)]
