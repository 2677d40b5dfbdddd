"""A notebook in an allocation of Slurm: the GPUs that it was given, no rank but the pool's."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_stubs import gpus
from slurm import slurm  # noqa: F401 - a fixture

from notebooks import wait_until

pytestmark = pytest.mark.slurm

CODE = """
import json, os, re
import jupyter_mgpu as mgpu

def seen():
    return dict(os.environ)

pool = mgpu.parpool({arguments})
engines = mgpu.spmd(seen)
os.environ["SLURM_PROCID"] = "5"  # such as a library of the notebook may do
later = mgpu.spmd(seen)
record = dict(
    devices=[engine.device for engine in pool.engines],
    own=dict(os.environ),
    engines=list(engines),
    later=list(later),
)
pool.shutdown()
print("RECORD" + json.dumps(record))
"""


@pytest.fixture
def inside(
    slurm: dict[str, str],  # noqa: F811 - the fixture
    gpu_machine: Callable[[str], Any],
    tmp_path: Path,
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Run code in an allocation for two of four GPUs, of which another job holds the first two."""
    machine = gpu_machine(gpus(4))
    environment = {**machine, "SLURM_CONF": slurm["SLURM_CONF"]}
    holder = subprocess.Popen(["srun", "--gres=gpu:2", "sleep", "600"], env=environment)

    def run(command: list[str], arguments: str = "") -> dict[str, Any]:
        script = tmp_path / "script.py"
        script.write_text(CODE.format(arguments=arguments))
        done = subprocess.run(
            [*command, sys.executable, str(script)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if done.returncode:
            return {"error": done.stderr}
        said, _, text = done.stdout.partition("RECORD")
        record: dict[str, Any] = json.loads(text)
        return {**record, "said": said}

    def is_held() -> bool:
        asked = subprocess.run(
            ["squeue", "--noheader", "--format=%t"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return asked.stdout.strip() == "R"

    try:
        wait_until(is_held, 60, "the other job")
        yield run
    finally:
        holder.terminate()  # srun ends its job
        holder.wait(60)


BATCH = 'sbatch --wait --quiet --gres=gpu:2 --output=out --wrap="$0 $1" && cat out'
ALLOCATIONS = {
    "srun": ["srun", "--gres=gpu:2", "--ntasks=1"],
    "step of salloc": ["salloc", "--gres=gpu:2", "srun", "--gres=gpu:2"],
    "batch script": ["sh", "-c", BATCH],  # as Open OnDemand has it
}


@pytest.mark.parametrize("way", ALLOCATIONS)
def test_a_pool_has_the_gpus_of_the_allocation(inside: Callable[..., Any], way: str) -> None:
    record = inside(ALLOCATIONS[way])

    assert record["own"]["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert [device.partition(" (")[0] for device in record["devices"]] == ["GPU 2", "GPU 3"]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in record["engines"]] == ["2", "3"]


def test_without_a_mask_slurm_is_asked_for_the_gpus(inside: Callable[..., Any]) -> None:
    record = inside(["salloc", "--gres=gpu:2"])

    assert "CUDA_VISIBLE_DEVICES" not in record["own"]
    assert "grants this notebook 2, 3." in record["said"]
    assert [device.partition(" (")[0] for device in record["devices"]] == ["GPU 2", "GPU 3"]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in record["engines"]] == ["2", "3"]


def test_an_allocation_without_gpus_has_none(inside: Callable[..., Any]) -> None:
    record = inside(["salloc", "--ntasks=1"], "1")

    assert "grants this notebook none of this machine's GPUs." in record["said"]
    assert record["devices"] == ["CPU"]


def test_a_notebook_beside_its_allocation_is_told_so(inside: Callable[..., Any]) -> None:
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname login; exec "$@"', "sh"]

    record = inside(["salloc", "--gres=gpu:2", *renamed], "1")

    assert "is on node1, and this notebook is not: %parpool N --cluster slurm" in record["said"]


def test_no_rank_of_the_scheduler_reaches_an_engine(inside: Callable[..., Any]) -> None:
    record = inside(ALLOCATIONS["srun"])

    assert {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"} <= record["own"].keys()
    for rank, (engine, later) in enumerate(zip(record["engines"], record["later"], strict=True)):
        for seen in (engine, later):
            assert not [name for name in seen if "PROCID" in name or "NTASKS" in name]
            assert not [name for name in seen if name.startswith(("PMI_", "SLURM_STEP", "OMPI_"))]
            assert (seen["RANK"], seen["WORLD_SIZE"], seen["LOCAL_RANK"]) == (str(rank), "2", "0")
            assert seen["SLURM_JOB_ID"] == record["own"]["SLURM_JOB_ID"]


def test_a_gpu_outside_the_allocation_is_refused(inside: Callable[..., Any]) -> None:
    record = inside(ALLOCATIONS["srun"], "gpus='0,1'")

    assert "CUDA_VISIBLE_DEVICES=2,3 leaves this notebook 2, 3" in record["error"]
