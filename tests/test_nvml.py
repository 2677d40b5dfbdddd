"""What NVML's answers become: records, or words that say why there are none."""

import json

import pytest
from gpu_stubs import divided_gpu, gpu, gpu_uuid, gpus, mig_uuid, mixed_gpus

INVENTORY = """
from jupyter_mgpu.nvml import read_inventory
inventory = read_inventory()
trouble = inventory.trouble and [inventory.trouble.why, inventory.trouble.next_step]
result = {"trouble": trouble, "names": [d.name for d in inventory.gpus],
          "uuids": [d.uuid for d in inventory.usable],
          "unusable": [[g.index, g.uuid, g.reason, g.is_lost] for g in inventory.unusable]}
"""
READINGS = """
from dataclasses import asdict
from jupyter_mgpu.nvml import read_devices, read_inventory
result = [asdict(reading) for reading in read_devices(read_inventory().devices)]
"""
CALLS_PER_READING = [
    ("nvmlDeviceGetUtilizationRates", ("utilization_percent",)),
    ("nvmlDeviceGetTemperature", ("temperature_celsius",)),
    ("nvmlDeviceGetPowerUsage", ("power_watts",)),
    ("nvmlDeviceGetEnforcedPowerLimit", ("power_limit_watts",)),
    ("nvmlDeviceGetComputeRunningProcesses", ("processes",)),
    ("nvmlDeviceGetMPSComputeRunningProcesses", ()),
]


def test_importing_the_package_touches_neither_nvml_nor_cuda(gpu_machine):
    machine = gpu_machine(gpus(1))

    loaded = machine.result(
        "import sys, jupyter_mgpu, jupyter_mgpu.gpus, jupyter_mgpu.diagnosis, jupyter_mgpu.nvml\n"
        "maps = open('/proc/self/maps').read()\n"
        "result = ['pynvml' in sys.modules, 'torch' in sys.modules, 'libnvidia-ml' in maps]"
    )

    assert loaded == [False, False, False]


@pytest.mark.parametrize("number", [1, 4, 16])
def test_every_gpu_is_listed_in_the_drivers_order(gpu_machine, number):
    found = gpu_machine(gpus(number)).result(INVENTORY)

    assert found["uuids"] == [gpu_uuid(index) for index in range(number)]
    assert found["trouble"] is None


def test_mixed_models_keep_their_names(gpu_machine):
    found = gpu_machine(mixed_gpus()).result(INVENTORY)

    assert found["names"] == ["RTX A4000", "NVIDIA L40S", "Tesla T4", "NVIDIA H200"]


def test_a_divided_gpu_is_replaced_by_its_instances(gpu_machine):
    machine = gpu_machine(f"{gpu(0)}\n{divided_gpu(1, 2)}\n{gpu(2)}")

    found = machine.result(INVENTORY)

    assert found["uuids"] == [gpu_uuid(0), mig_uuid(1, 0), mig_uuid(1, 1), gpu_uuid(2)]


@pytest.mark.parametrize(
    ("scenario", "words", "step"),
    [
        ("", "shows no GPU", "NVIDIA_VISIBLE_DEVICES"),
        ("fail nvmlInit 9", "kernel module is not loaded", "modprobe"),
        ("fail nvmlInit 18", "different versions", "Reboot"),
        ("fail nvmlInit 4", "no permission", "access"),
        ("fail nvmlInit 999", "unknown error", "nvidia-smi"),
        ("fail nvmlDeviceGetCount 999", "cannot list its GPUs", "nvidia-smi"),
        ("gpu 0 lost=1", "None of this machine's GPUs can be used", "Reboot"),
    ],
)
def test_why_there_is_no_gpu_is_said_in_words_with_a_next_step(gpu_machine, scenario, words, step):
    found = gpu_machine(scenario).result(INVENTORY)

    why, next_step = found["trouble"]
    assert words in why
    assert step in next_step
    assert found["uuids"] == []


@pytest.mark.parametrize("code", [4, 9, 999])
def test_a_container_without_the_devices_is_told_from_a_driver_that_is_not_loaded(
    gpu_machine, tmp_path, code
):
    (tmp_path / "version").touch()

    found = gpu_machine(f"fail nvmlInit {code}").result(
        "from pathlib import Path\n"
        "from jupyter_mgpu.nvml import troubles\n"
        f"troubles._MODULE = Path({str(tmp_path / 'version')!r})\n"
        f"troubles._CONTROL_DEVICE = Path({str(tmp_path / 'nvidiactl')!r})\n" + INVENTORY
    )

    assert "none of its devices" in found["trouble"][0]
    assert "--gpus all" in found["trouble"][1]


def test_a_machine_without_a_driver_says_so(gpu_machine):
    found = gpu_machine("").result(INVENTORY, LD_LIBRARY_PATH="")

    if found["trouble"] is None or "no NVIDIA driver" not in found["trouble"][0]:
        pytest.skip("this machine has a driver")
    assert "--gpus all" in found["trouble"][1]


@pytest.mark.parametrize(
    ("module", "words"),
    [("raise ImportError", "nvidia-ml-py is not installed"), ("x = 1", "Another package")],
)
def test_a_missing_or_wrong_pynvml_is_named(gpu_machine, tmp_path, module, words):
    (tmp_path / "pynvml.py").write_text(module)

    found = gpu_machine(gpus(1)).result(INVENTORY, PYTHONPATH=str(tmp_path))

    assert words in found["trouble"][0]


def test_a_binding_that_does_not_fit_the_driver_costs_one_value_only(gpu_machine):
    # NVMLLibraryMismatchError is not an NVMLError.
    found = gpu_machine(gpus(1)).result(
        "import pynvml\n"
        "def wrong(handle): raise pynvml.NVMLLibraryMismatchError('unversioned')\n"
        "pynvml.nvmlDeviceGetComputeRunningProcesses = wrong\n" + READINGS
    )

    assert found[0]["processes"] is None
    assert "do not fit" in found[0]["reasons"]["processes"]
    assert found[0]["utilization_percent"] == 0


@pytest.mark.parametrize(("call", "missing"), CALLS_PER_READING)
def test_a_call_that_is_not_supported_leaves_one_value_unknown(gpu_machine, call, missing):
    machine = gpu_machine(f"{gpus(2)}\nfail {call} 3 1")

    first, second = machine.result(READINGS)

    assert first["reasons"] == {}
    assert second["reasons"] == dict.fromkeys(missing, "not supported")
    for name in missing:
        assert second[name] is None
        assert first[name] is not None


def test_memory_that_is_not_reported_is_unknown_and_never_zero(gpu_machine):
    machine = gpu_machine(
        f"{gpus(1)}\nfail nvmlDeviceGetMemoryInfo 3\nfail nvmlDeviceGetMemoryInfo_v2 3"
    )

    (reading,) = machine.result(READINGS)

    assert reading["memory_used_bytes"] is None
    assert reading["memory_total_bytes"] is None
    assert reading["reasons"]["memory_used_bytes"] == "not supported"


def test_an_old_driver_reports_memory_by_the_older_call(gpu_machine):
    machine = gpu_machine(f"{gpu(0, used=1024)}\nfail nvmlDeviceGetMemoryInfo_v2 13")

    (reading,) = machine.result(READINGS)

    assert reading["memory_used_bytes"] == 2**30
    assert reading["memory_reserved_bytes"] is None
    assert reading["reasons"] == {"memory_reserved_bytes": "not reported"}


def test_memory_that_the_driver_keeps_for_itself_is_told_apart(gpu_machine):
    (reading,) = gpu_machine(gpu(0, used=0, reserved=600)).result(READINGS)

    assert reading["memory_used_bytes"] == 0
    assert reading["memory_reserved_bytes"] == 600 * 2**20


def test_each_process_is_listed_once_with_unknown_memory_as_unknown(gpu_machine):
    machine = gpu_machine(
        f"{gpus(1)}\nprocess 0 pid=7 memory=10\nprocess 0 pid=7 memory=30 mps=1\n"
        "process 0 pid=8 memory=-1\nprocess 0 pid=0 memory=1"
    )

    (reading,) = machine.result(READINGS)

    assert reading["processes"] == [
        {"pid": 7, "memory_used_bytes": 30 * 2**20},
        {"pid": 8, "memory_used_bytes": None},
    ]


def test_a_lost_gpu_is_named_and_the_others_go_on(gpu_machine):
    machine = gpu_machine(f"{gpu(0)}\n{gpu(1, lost=1)}\n{gpu(2)}")

    found = machine.result(INVENTORY)

    assert found["uuids"] == [gpu_uuid(0), gpu_uuid(2)]
    assert found["unusable"] == [[1, None, "the GPU is lost", True]]


def test_a_gpu_that_is_lost_later_keeps_its_name(gpu_machine):
    machine = gpu_machine(gpus(2))
    code = (
        "from jupyter_mgpu.nvml import read_devices, read_inventory\n"
        "before = read_inventory(); print(flush=True); input()\n"
        "readings = read_devices(before.gpus); after = read_inventory()\n"
        "import json; print(json.dumps([[r.is_lost for r in readings], after.unusable[0].uuid]))"
    )
    with machine.start(code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        machine.write(f"{gpu(0)}\n{gpu(1, lost=1)}")
        output, _ = process.communicate("\n", timeout=30)

    assert json.loads(output) == [[False, True], gpu_uuid(1)]


def test_a_hanging_driver_costs_one_time_out_and_works_again_when_it_answers(gpu_machine):
    machine = gpu_machine(f"{gpus(2)}\nhang nvmlDeviceGetUUID 1")
    code = (
        "import json, time\n"
        "from jupyter_mgpu.nvml import read_inventory\n"
        "def look():\n"
        "    start = time.monotonic(); found = read_inventory()\n"
        "    return [time.monotonic() - start, str(found.trouble), len(found.gpus)]\n"
        "print(json.dumps([look(), look()]), flush=True); input()\n"
        "deadline = time.monotonic() + 20\n"
        "while (last := look())[2] == 0 and time.monotonic() < deadline: time.sleep(0.05)\n"
        "print(json.dumps(last))"
    )
    with machine.start(code) as process:
        assert process.stdout is not None
        first, second = json.loads(process.stdout.readline())
        machine.remove("hang nvmlDeviceGetUUID 1")
        output, _ = process.communicate("\n", timeout=30)

    assert "did not answer in 2 s" in first[1]
    assert 1.9 < first[0] < 10
    assert second[1] == first[1]
    assert second[0] < 1.9
    assert json.loads(output)[2] == 2


def test_a_driver_that_hangs_at_its_start_is_given_more_time_and_then_up(gpu_machine):
    # nvmlInit wakes every GPU, which takes seconds without persistence mode.
    told = gpu_machine(f"{gpus(1)}\nhang nvmlInit").result(
        "import time\nfrom jupyter_mgpu.nvml import driver, read_inventory\n"
        "limits = [driver.INIT_TIMEOUT_S, driver.CALL_TIMEOUT_S]\n"
        "driver.INIT_TIMEOUT_S = 0.3\n"
        "result = [limits, read_inventory().trouble.why]"
    )

    assert told[0][0] > told[0][1]
    assert "did not answer in 0.3 s (nvmlInitWithFlags)" in told[1]


def test_a_hang_does_not_keep_the_process_from_ending(gpu_machine):
    machine = gpu_machine(f"{gpus(1)}\nhang nvmlDeviceGetName")

    machine.python("from jupyter_mgpu.nvml import read_inventory; read_inventory()")


def test_an_interrupt_ends_the_wait_for_a_hanging_driver(gpu_machine):
    machine = gpu_machine(f"{gpus(1)}\nhang nvmlDeviceGetName")

    told = machine.python(
        "import _thread, threading\n"
        "from jupyter_mgpu.nvml import read_inventory\n"
        "timer = threading.Timer(0.3, _thread.interrupt_main)\n"
        "try: timer.start(); read_inventory(); print('waited')\n"
        "except KeyboardInterrupt: print('interrupted')"
    )

    assert told == "interrupted"


def test_a_forked_child_asks_the_driver_anew(gpu_machine):
    told = gpu_machine(gpus(2)).python(
        "import os\n"
        "from jupyter_mgpu.nvml import read_inventory\n"
        "read_inventory()\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(len(read_inventory().gpus))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )

    assert told == "2"


def test_a_child_that_was_forked_in_the_middle_of_a_question_asks_anew(gpu_machine):
    told = gpu_machine(gpus(2)).python(
        "import os\n"
        "from jupyter_mgpu.nvml import read_inventory\n"
        "from jupyter_mgpu.nvml.driver import driver\n"
        "read_inventory()\n"
        "with driver._lock: pid = os.fork()\n"
        "if pid == 0: os._exit(len(read_inventory().gpus))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )

    assert told == "2"


def test_another_library_may_shut_nvml_down(gpu_machine):
    number = gpu_machine(gpus(2)).result(
        "import pynvml\n"
        "from jupyter_mgpu.nvml import read_inventory\n"
        "read_inventory(); pynvml.nvmlShutdown(); result = len(read_inventory().gpus)"
    )

    assert number == 2
