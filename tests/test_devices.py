"""What a request such as `--gpus 1,3` selects."""

import pytest

from jupyter_mgpu.devices import Device, DeviceIndex, MigPlace, parse_gpus, select_devices
from jupyter_mgpu.errors import DuplicateGpuError, GpuNotFoundError, SelectionError

FOUR_GPUS = [
    Device(DeviceIndex(index), f"GPU-{letter * 8}-0000", "H200")
    for index, letter in enumerate("abbc")
]
FOUR_GPUS[2] = Device(DeviceIndex(2), "GPU-bbbbbbbb-1111", "H200")
DIVIDED = [
    Device(DeviceIndex(0), "GPU-aaaa", "H200", is_divided=True),
    Device(None, "MIG-1111", "H200 MIG", mig=MigPlace(DeviceIndex(0), "GPU-aaaa", 0)),
    Device(None, "MIG-2222", "H200 MIG", mig=MigPlace(DeviceIndex(0), "GPU-aaaa", 1)),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,3", [1, 3]),
        ("0-3", [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("3, 0-1", [3, 0, 1]),
        ("GPU-aaaaaaaa,2", ["GPU-aaaaaaaa", 2]),
        ("MIG-GPU-aaaa/1/0", ["MIG-GPU-aaaa/1/0"]),
    ],
)
def test_numbers_ranges_and_uuids_are_read_in_the_order_typed(text, expected):
    assert parse_gpus(text) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "1,,3", "one", "3-1", "-1", "1.5", "0-", "0-99999", "GPU", "٣"]
)
def test_what_cannot_be_read_gets_one_line_that_lists_what_exists(text):
    with pytest.raises(SelectionError, match=r"this machine has: 0, 1, 2, 3\.") as caught:
        parse_gpus(text, FOUR_GPUS)

    assert "\n" not in str(caught.value)


def test_the_order_asked_for_becomes_the_order_of_the_ranks():
    selected = select_devices([2, 0], FOUR_GPUS)

    assert [device.index for device in selected] == [2, 0]


def test_a_missing_gpu_is_named_with_the_ones_that_exist():
    with pytest.raises(GpuNotFoundError, match=r"GPU 9 was requested.*has: 0, 1, 2, 3") as caught:
        select_devices([0, 9], FOUR_GPUS)

    assert caught.value.requested == 9


def test_a_gpu_named_twice_is_refused_also_by_different_names():
    with pytest.raises(DuplicateGpuError, match="requested twice"):
        select_devices([0, "GPU-aaaaaaaa"], FOUR_GPUS)


def test_the_beginning_of_a_uuid_is_enough_where_it_fits_one_gpu():
    assert select_devices(["gpu-C"], FOUR_GPUS) == [FOUR_GPUS[3]]

    with pytest.raises(SelectionError, match=r"fits several GPUs: GPU-bbbbbbbb-0000, GPU-bbbb"):
        select_devices(["GPU-bbbb"], FOUR_GPUS)


def test_a_mig_instance_is_selected_by_uuid():
    assert select_devices(["MIG-2222"], DIVIDED) == [DIVIDED[2]]


def test_a_divided_gpu_is_refused_with_its_instances():
    with pytest.raises(SelectionError, match=r"GPU 0 is divided.*MIG-1111, MIG-2222"):
        select_devices([0], DIVIDED)
