"""What only a real GPU can show of samples: that they equal nvidia-smi's and follow a load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_on_gpu import _needs_gpus, result, torch_sees_cuda  # noqa: F401 - a fixture

pytestmark = pytest.mark.gpu

BUSY = """
import torch
x = torch.ones(4096, 4096, device="cuda")
while True:
    for _ in range(20): x @ x
    torch.cuda.synchronize()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "MGPU_LEASE_DIR": str(tmp_path / "leases")}


def test_samples_equal_nvidia_smis(environment):
    wanted = "uuid,memory.total,memory.reserved,enforced.power.limit"
    listed = subprocess.run(
        ["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    taken = result(
        environment,
        "from jupyter_mgpu.monitor import take_snapshot\nresult = take_snapshot().to_dict()",
    )

    for line in listed.splitlines():
        uuid, total, reserved, limit = line.split(", ")
        found = next(gpu for gpu in taken["gpus"] if gpu["uuid"] == uuid)
        assert found["memory_total_bytes"] // 2**20 == int(total), found
        assert found["memory_reserved_bytes"] // 2**20 == int(reserved), found
        assert found["power_limit_watts"] == pytest.approx(float(limit), abs=0.1)
        assert 0 < found["temperature_celsius"] < 120
        assert found["power_watts"] > 0
        assert isinstance(found["throttle"], list)


def test_a_busy_gpu_is_seen_with_its_process(environment):
    torch_sees_cuda(environment)
    with subprocess.Popen([sys.executable, "-c", BUSY], env=environment) as load:
        try:
            seen = result(
                environment,
                "import time\n"
                "from jupyter_mgpu.monitor import Watch\n"
                "deadline = time.monotonic() + 60\n"
                "with Watch(0.5) as watch:\n"
                "    while time.monotonic() < deadline:\n"
                "        busy = [gpu for gpu in watch.snapshot().gpus\n"
                "                if (gpu.utilization_percent or 0) > 50 and gpu.users]\n"
                "        uuid = busy[0].uuid if busy else ''\n"
                "        last = watch.series(uuid, 'utilization_percent').values[-1:]\n"
                "        if last and (last[0] or 0) > 50: break\n"
                "        time.sleep(0.1)\n"
                "    result = [busy[0].memory_used_bytes, len(busy[0].users), last[0]]",
            )
        finally:
            load.kill()

    used, num_users, last = seen
    assert used > 64 * 2**20
    assert num_users >= 1
    assert last > 50
