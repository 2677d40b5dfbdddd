"""What an engine sees of its GPUs: masks by number or UUID, and the proof that CUDA agrees."""

import pytest
from gpu_stubs import choose, divided_gpu, gpu, gpu_uuid, gpus, mig_uuid, mixed_gpus


def test_each_rank_gets_the_gpu_that_nvidia_smi_shows_under_that_number(gpu_machine):
    chosen = choose(gpu_machine(mixed_gpus()), gpus="1,3")

    assert chosen["uuids"] == [[gpu_uuid(1)], [gpu_uuid(3)]]
    assert chosen["masks"] == ["1", "3"]
    assert chosen["orders"] == ["PCI_BUS_ID"] * 2
    assert chosen["proven"] == [True, True]


def test_cudas_own_order_would_have_been_another_one(gpu_machine):
    # Shows that the test above can fail.
    seen = gpu_machine(mixed_gpus()).result(
        "import os\nfrom jupyter_mgpu.gpus import prove\n"
        "result = prove({**os.environ, 'CUDA_VISIBLE_DEVICES': '1,3'})"
    )

    assert [f"GPU-{uuid}" for uuid in seen] == [gpu_uuid(1), gpu_uuid(2)]


def test_the_bus_decides_where_nvml_lists_in_another_order(gpu_machine):
    machine = gpu_machine(f"{gpu(0, bus='00000000:90:00.0')}\n{gpu(1, bus='00000000:20:00.0')}")

    chosen = choose(machine, gpus="0")

    assert chosen["uuids"] == [[gpu_uuid(0)]]
    assert chosen["masks"] == ["1"]
    assert chosen["proven"] == [True]


def test_a_wrong_pin_is_an_error_that_names_both_gpus(gpu_machine):
    words = gpu_machine(mixed_gpus()).result(
        "import os\nfrom jupyter_mgpu.gpus import Request, choose\n"
        "choice = choose(Request(gpus='1'))\n"
        "choice.slots[0].environment['CUDA_DEVICE_ORDER'] = 'FASTEST_FIRST'\n"
        "choice.slots[0].environment['CUDA_VISIBLE_DEVICES'] = '0'\n"
        "result = [proof.error for proof in choice.prove()]"
    )

    assert f"Rank 0 should run on GPU 1 ({gpu_uuid(1)})" in words[0]
    assert f"CUDA shows it GPU 3 ({gpu_uuid(3)})" in words[0]


@pytest.mark.parametrize("scenario", ["fail cuInit 999", "hang cuInit"])
def test_a_driver_that_does_not_answer_leaves_the_pin_unproven_and_is_no_error(
    gpu_machine, scenario
):
    found = gpu_machine(f"{gpus(1)}\n{scenario}").result(
        "from jupyter_mgpu import cuda\nfrom jupyter_mgpu.gpus import Request, choose\n"
        "cuda.visible_uuids.__defaults__ = (1.0,)\n"
        "result = [[p.error, p.warning] for p in choose(Request()).prove()]"
    )

    assert found[0][0] is None
    assert "is not proven" in found[0][1]


def test_an_engine_can_have_several_gpus(gpu_machine):
    chosen = choose(gpu_machine(gpus(5)), gpus_per_engine=2)

    assert chosen["masks"] == ["0,1", "2,3"]
    assert chosen["leases"] == [2, 2]
    assert all(chosen["proven"])


def test_every_engine_can_see_the_whole_pool_in_rank_order(gpu_machine):
    chosen = choose(gpu_machine(mixed_gpus()), gpus="3,1", visible="pool")

    assert chosen["masks"] == ["3,1", "3,1"]
    assert chosen["uuids"] == [[gpu_uuid(3)], [gpu_uuid(1)]]
    assert chosen["leases"] == [1, 1]
    assert all(chosen["proven"])


def test_mig_instances_are_pinned_by_uuid_one_per_engine(gpu_machine):
    chosen = choose(gpu_machine(divided_gpu(0, 3)))

    assert chosen["masks"] == [mig_uuid(0, part) for part in range(3)]
    assert chosen["proven"] == [True] * 3


@pytest.mark.parametrize("other", [divided_gpu(1, 1), gpu(1, lost=1)])
def test_uuids_pin_where_a_number_could_mean_another_gpu(gpu_machine, other):
    chosen = choose(gpu_machine(f"{gpu(0)}\n{other}\n{gpu(2)}"), gpus="2")

    assert chosen["masks"] == [gpu_uuid(2)]
    assert chosen["proven"] == [True]


@pytest.mark.parametrize(
    ("mask", "order", "left"),
    [
        ("2,0", "PCI_BUS_ID", [0, 2]),
        ("0,1", "", [1, 3]),  # the fastest two
        ("0,1", "FASTEST_FIRST", [1, 3]),
        ("1,9,0", "PCI_BUS_ID", [1]),  # a wrong entry hides what follows
        ("GPU-03", "", [3]),
        (f"{gpu_uuid(2)},{gpu_uuid(1)}", "", [1, 2]),
    ],
)
def test_a_mask_of_the_notebook_is_respected(gpu_machine, mask, order, left):
    machine = gpu_machine(mixed_gpus())
    machine["CUDA_VISIBLE_DEVICES"] = mask
    if order:
        machine["CUDA_DEVICE_ORDER"] = order

    chosen = choose(machine)

    assert chosen["masks"] == [str(index) for index in left]
    assert all(chosen["proven"])
    assert any(f"CUDA_VISIBLE_DEVICES={mask}" in sentence for sentence in chosen["sentences"])


def test_gpus_hidden_from_the_notebook_are_refused_with_the_reason(gpu_machine):
    machine = gpu_machine(gpus(4))
    machine["CUDA_VISIBLE_DEVICES"] = "2,3"

    refused = choose(machine, gpus="0")

    assert "GPU 0 is hidden from this notebook: CUDA_VISIBLE_DEVICES=2,3" in refused["words"]
    assert "Choose from: 2, 3." in refused["words"]


def test_a_mask_of_mig_instances_gives_each_engine_one(gpu_machine):
    machine = gpu_machine(divided_gpu(0, 3))
    machine["CUDA_VISIBLE_DEVICES"] = f"{mig_uuid(0, 0)},{mig_uuid(0, 2)}"

    chosen = choose(machine, n=2)

    assert chosen["masks"] == [mig_uuid(0, 0), mig_uuid(0, 2)]
    assert chosen["proven"] == [True, True]


@pytest.mark.parametrize("mask", ["", "-1", "NoDevFiles"])
def test_a_mask_that_hides_everything_makes_cpu_engines(gpu_machine, mask):
    machine = gpu_machine(gpus(2))
    machine["CUDA_VISIBLE_DEVICES"] = mask

    chosen = choose(machine, n=2)

    assert chosen["masks"] == ["", ""]
    assert any("none of this machine's GPUs" in sentence for sentence in chosen["sentences"])


def test_a_mask_that_nobody_can_translate_is_an_error_with_a_way_out(gpu_machine):
    machine = gpu_machine(gpus(2))
    machine["CUDA_VISIBLE_DEVICES"] = "0"
    machine["MGPU_LIBCUDA"] = "/nowhere/libcuda.so.1"

    numbers = choose(machine)
    machine["CUDA_VISIBLE_DEVICES"] = gpu_uuid(1)
    uuids = choose(machine)

    assert "cannot be found out" in numbers["words"]
    assert uuids["masks"] == ["1"]
