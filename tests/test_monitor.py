"""What is read of GPUs of every kind, and what is said of what cannot be read."""

import pytest
from gpu_stubs import divided_gpu, gpu, gpu_uuid, gpus, mig_uuid, mixed_gpus
from monitoring import answering, until

TAKE = """
from jupyter_mgpu.monitor import take_snapshot
result = take_snapshot().to_dict()
"""
MIB = 2**20
CALLS = {
    "nvmlDeviceGetUtilizationRates": ["utilization_percent"],
    "nvmlDeviceGetTemperature": ["temperature_celsius"],
    "nvmlDeviceGetPowerUsage": ["power_watts"],
    "nvmlDeviceGetEnforcedPowerLimit": ["power_limit_watts"],
    "nvmlDeviceGetComputeRunningProcesses": ["users"],
    "nvmlDeviceGetMemoryInfo_v2": ["memory_reserved_bytes"],
}
NUMBERS = ["memory_used_bytes", "utilization_percent", "temperature_celsius", "power_watts"]


def test_every_number_of_a_gpu_is_read(gpu_machine):
    machine = gpu_machine(
        gpu(0, util=37, used=400, reserved=600, power=300, temperature=61, throttle=0x24)
    )

    taken = machine.result(TAKE)

    (found,) = taken["gpus"]
    assert found["state"] == "ok"
    assert found["utilization_percent"] == 37
    assert found["memory_used_bytes"] == 400 * MIB
    assert found["memory_total_bytes"] == 144384 * MIB
    assert found["memory_reserved_bytes"] == 600 * MIB
    assert (found["power_watts"], found["power_limit_watts"]) == (300, 700)
    assert found["temperature_celsius"] == 61
    assert found["throttle"] == ["power cap", "too hot (driver)"]
    assert found["users"] == []
    assert found["reasons"] == {}
    assert taken["trouble"] is None
    assert taken["driver_version"] == "570.86"


@pytest.mark.parametrize("number", [1, 4, 16])
def test_every_gpu_is_there_in_the_drivers_order(gpu_machine, number):
    taken = gpu_machine(gpus(number)).result(TAKE)

    assert [found["uuid"] for found in taken["gpus"]] == [gpu_uuid(i) for i in range(number)]
    assert [found["index"] for found in taken["gpus"]] == list(range(number))


def test_gpus_of_different_models_keep_their_names(gpu_machine):
    taken = gpu_machine(mixed_gpus()).result(TAKE)

    names = [(found["label"], found["name"]) for found in taken["gpus"]]
    assert names[0] == ("GPU 0", "RTX A4000")
    assert names[3] == ("GPU 3", "NVIDIA H200")


def test_a_divided_gpu_is_followed_by_its_instances(gpu_machine):
    machine = gpu_machine(f"{gpu(0)}\n{divided_gpu(1, 2)}\nfail nvmlDeviceGetUtilizationRates 3 1")

    taken = machine.result(TAKE)

    found = [(one["label"], one["uuid"], one["state"]) for one in taken["gpus"]]
    assert found == [
        ("GPU 0", gpu_uuid(0), "ok"),
        ("GPU 1", gpu_uuid(1), "divided"),
        ("GPU 1 MIG 0", mig_uuid(1, 0), "ok"),
        ("GPU 1 MIG 1", mig_uuid(1, 1), "ok"),
    ]
    instance = taken["gpus"][2]
    assert instance["memory_total_bytes"] == 16384 * MIB
    assert instance["utilization_percent"] is None
    assert instance["reasons"]["utilization_percent"] == "not supported for a MIG instance"


@pytest.mark.parametrize(("call", "missing"), CALLS.items())
def test_what_is_not_supported_is_unknown_with_its_reason_and_the_rest_is_there(
    gpu_machine, call, missing
):
    taken = gpu_machine(f"{gpus(2)}\nfail {call} 3 1").result(TAKE)

    first, second = taken["gpus"]
    assert first["reasons"] == {}
    assert list(second["reasons"]) == missing
    assert {second[name] for name in missing} == {None}
    assert all(second[name] is not None for name in NUMBERS if name not in missing)


def test_one_permission_that_is_missing_is_named(gpu_machine):
    calls = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
    taken = gpu_machine(gpus(1) + "".join(f"\nfail {call} 4" for call in calls)).result(TAKE)

    (found,) = taken["gpus"]
    assert found["memory_used_bytes"] is None
    assert found["reasons"]["memory_used_bytes"] == "no permission"
    assert found["utilization_percent"] == 0


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x1, []),  # idle is no slowdown
        (0x4, ["power cap"]),
        (0x8, ["hardware slowdown"]),
        (0x40, ["too hot (hardware)"]),
        (0x84, ["power cap", "power brake"]),
    ],
)
def test_why_a_gpu_is_slow_is_said_in_words(gpu_machine, bits, words):
    (found,) = gpu_machine(gpu(0, throttle=bits)).result(TAKE)["gpus"]

    assert found["throttle"] == words


def test_processes_that_cannot_exist_are_no_users(gpu_machine):
    # As drivers 535.43 to 535.86 list them with other bindings.
    machine = gpu_machine(f"{gpus(1)}\nprocess 0 pid=2000000000 memory=10")

    (found,) = machine.result(TAKE)["gpus"]

    assert found["users"] is None
    assert "cannot exist" in found["reasons"]["users"]


def test_users_are_mapped_to_pool_and_rank_and_followed(gpu_machine):
    machine = gpu_machine(gpus(2))
    lease = (
        "from jupyter_mgpu.leases import LeaseBook\n"
        f"claim = LeaseBook().claim(['{gpu_uuid(1)}'], rank=3, pool='mine')\n"
    )
    with machine.foreign_process(0, memory_mib=700) as pid, answering(machine) as ask:
        ask("watch = Watch(0.5)")
        until(ask, "watch.snapshot().gpus and watch.snapshot().gpus[0].users")
        (use,) = ask("result = watch.snapshot().to_dict()['gpus'][0]['users']")
        assert use["pid"] == pid
        assert use["memory_used_bytes"] == 700 * MIB
        assert use["pool"] is None
        assert ask("result = watch.snapshot().gpus[1].users") == []

        ask(lease)
        until(ask, "watch.snapshot().gpus[1].users")
        (use,) = ask("result = watch.snapshot().to_dict()['gpus'][1]['users']")
        assert (use["pool"], use["rank"]) == ("mine", 3)

        machine.remove(f"process 0 pid={pid} memory=700")
        machine.add(f"process 0 pid={pid} memory=900")
        used = "[use.memory_used_bytes for use in watch.snapshot().gpus[0].users]"
        until(ask, f"{used} == [{900 * MIB}]")  # between the two it has none

        machine.remove(f"process 0 pid={pid} memory=900")
        ask("claim.drop()")
        until(ask, "not any(gpu.users for gpu in watch.snapshot().gpus)")
        machine.add(f"process 0 pid={pid} memory=700")  # foreign_process takes it back


def test_memory_that_no_process_accounts_for_is_not_called_free(gpu_machine):
    held, reserved = gpu_machine(f"{gpu(0, used=9830)}\n{gpu(1, used=300)}").result(TAKE)["gpus"]

    (use,) = held["users"]
    assert use["words"] == "a process that the driver does not name (9.6 GiB)"
    assert use["pid"] is None
    assert use["memory_used_bytes"] == 9830 * MIB
    assert reserved["users"] == []


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_gpu_that_uses_the_hosts_memory_shows_that_of_its_processes(gpu_machine, is_answered):
    machine = gpu_machine(
        f"{gpu(0, name='NVIDIA_GB10', used=90_000)}\nprocess 0 pid=1 memory=300\n"
        "process 0 pid=2 memory=200"
    )
    if not is_answered:
        machine.add("fail nvmlDeviceGetMemoryInfo 3\nfail nvmlDeviceGetMemoryInfo_v2 3")

    taken = machine.result(TAKE)

    (found,) = taken["gpus"]
    assert found["is_memory_shared"]
    assert found["memory_used_bytes"] == 500 * MIB
    assert found["memory_total_bytes"] == taken["host"]["memory_total_bytes"]
    assert "memory_used_bytes" not in found["reasons"]


def test_a_board_without_any_numbers_says_so_once(gpu_machine):
    calls = [*CALLS, "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCurrentClocksEventReasons"]
    calls.append("nvmlDeviceGetCurrentClocksThrottleReasons")
    scenario = gpu(0, name="Orin_(nvgpu)", memory=0)

    (found,) = gpu_machine(scenario + "".join(f"\nfail {c} 3" for c in calls)).result(TAKE)["gpus"]

    assert set(found["reasons"].values()) == {"NVML has no numbers on Tegra (Jetson)"}
    assert {found[name] for name in NUMBERS} == {None}


def test_a_gpu_that_may_not_be_used_is_there_with_the_reason(gpu_machine):
    machine = gpu_machine(f"{gpus(2)}\nfail nvmlDeviceGetHandleByIndex 4 1")

    _, barred = machine.result(TAKE)["gpus"]

    assert barred["state"] == "unusable"
    assert set(barred["reasons"].values()) == {"no permission"}
    assert barred["utilization_percent"] is None
