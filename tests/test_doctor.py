"""What the doctor finds, and what to do about it."""

import resource

import pytest
from gpu_stubs import divided_gpu, gpu, gpus, mixed_gpus

DOCTOR = """
from jupyter_mgpu.diagnosis import doctor
report = doctor()
result = {check.name: [check.outcome.value, check.finding, check.next_step] for check in report}
result["text"] = repr(report)
"""
GPU_CHECKS = (
    "driver",
    "GPUs",
    "GPUs in CUDA",
    "compute mode",
    "GPU memory errors",
    "power and heat",
)


def test_a_healthy_machine_passes_its_gpu_checks(gpu_machine):
    found = gpu_machine(gpus(4)).result(DOCTOR)

    assert {name: found[name][0] for name in GPU_CHECKS} == dict.fromkeys(GPU_CHECKS, "passed")
    assert "Driver 570.86, up to CUDA 12.8" in found["driver"][1]
    assert "CUDA shows 4 of 4 GPUs" in found["GPUs in CUDA"][1]
    assert found["peer-to-peer"][:2] == ["passed", "All 4 GPUs reach each other."]
    assert "GPU 0 40 C, 120 of 700 W" in found["power and heat"][1]


def test_every_check_that_failed_has_a_next_step(gpu_machine):
    scenario = (
        f"{gpu(0, compute_mode=3, ecc_errors=2, throttle=0x40)}\n{gpu(1, lost=1)}\n{gpu(2)}\n"
        "p2p 0 2 status=1"
    )

    told = gpu_machine(scenario).result(
        "from jupyter_mgpu.diagnosis import doctor\n"
        "report = doctor()\n"
        "result = [[c.name for c in report.failed], [bool(c.next_step) for c in report.failed]]"
    )

    expected = {"GPUs", "compute mode", "GPU memory errors", "power and heat", "peer-to-peer"}
    assert expected <= set(told[0])
    assert all(told[1])


def test_a_machine_without_gpus_is_no_failure(gpu_machine):
    found = gpu_machine("").result(DOCTOR, LD_LIBRARY_PATH="")

    if "no NVIDIA driver" not in found["driver"][1]:
        pytest.skip("this machine has a driver")
    assert found["driver"][0] == "skipped"
    assert found["peer-to-peer"][0] == "skipped"


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("fail nvmlInit 18", "different versions"),
        ("fail nvmlInit 9", "not loaded"),
        (f"{gpus(1)}\nhang nvmlDeviceGetCount", "did not answer in 2 s"),
    ],
)
def test_a_sick_driver_is_a_failure_with_a_next_step(gpu_machine, scenario, words):
    outcome, finding, next_step = gpu_machine(scenario).result(DOCTOR)["driver"]

    assert outcome == "failed"
    assert words in finding
    assert next_step


@pytest.mark.parametrize(
    ("facts", "check", "words"),
    [
        ({"compute_mode": 3}, "compute mode", "GPU 0 is in mode 'exclusive process'"),
        ({"compute_mode": 2}, "compute mode", "prohibited"),
        ({"ecc_errors": 7}, "GPU memory errors", "7 uncorrected ECC errors since boot"),
        ({"remap_pending": 1}, "GPU memory errors", "a row waits to be replaced"),
        ({"remap_failed": 1}, "GPU memory errors", "could not be replaced"),
        ({"retired_pending": 1}, "GPU memory errors", "a page waits to be retired"),
        ({"throttle": 0x08}, "power and heat", "hardware slowdown"),
        ({"throttle": 0x20}, "power and heat", "too hot (driver)"),
        ({"throttle": 0x40}, "power and heat", "too hot (hardware)"),
        ({"throttle": 0x80}, "power and heat", "power brake"),
    ],
)
def test_the_state_of_a_gpu_is_told(gpu_machine, facts, check, words):
    outcome, finding, next_step = gpu_machine(gpu(0, **facts)).result(DOCTOR)[check]

    assert outcome == "failed"
    assert words in finding
    assert next_step


def test_a_gpu_at_its_power_limit_is_busy_and_not_broken(gpu_machine):
    outcome, finding, _ = gpu_machine(gpu(0, throttle=0x04)).result(DOCTOR)["power and heat"]

    assert outcome == "passed"
    assert "at its power limit" in finding


def test_what_the_driver_does_not_report_is_skipped(gpu_machine):
    calls = (
        "ComputeMode",
        "TotalEccErrors",
        "CurrentClocksEventReasons",
        "CurrentClocksThrottleReasons",
    )
    fails = "\n".join(f"fail nvmlDeviceGet{call} 3" for call in (*calls, "P2PStatus"))

    found = gpu_machine(f"{gpus(2)}\n{fails}").result(DOCTOR)

    for name in ("compute mode", "GPU memory errors", "power and heat", "peer-to-peer"):
        assert found[name][:2] == ["skipped", "The driver does not report it."]


def test_the_peer_matrix_names_who_does_not_reach_whom(gpu_machine):
    scenario = f"{gpus(3)}\np2p 0 2 status=3"

    outcome, finding, _ = gpu_machine(scenario).result(DOCTOR)["peer-to-peer"]

    assert outcome == "failed"
    assert "GPU 0: -, ok, no: different I/O hubs" in finding
    assert "GPU 1: ok, -, ok" in finding


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "waits for its end"),
        ({"NCCL_P2P_DISABLE": "1"}, "through the host's memory"),
    ],
)
def test_variables_that_slow_everything_are_named(gpu_machine, variables, words):
    outcome, finding, next_step = gpu_machine(gpus(1)).result(DOCTOR, **variables)["CUDA variables"]

    assert outcome == "failed"
    assert words in finding
    assert next(iter(variables)) in next_step


def test_mixed_gpus_in_cudas_own_order_are_told(gpu_machine):
    machine = gpu_machine(mixed_gpus())

    without = machine.result(DOCTOR)["CUDA variables"]
    with_order = machine.result(DOCTOR, CUDA_DEVICE_ORDER="PCI_BUS_ID")["CUDA variables"]

    assert without[0] == "failed"
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in without[2]
    assert with_order[0] == "passed"


@pytest.mark.parametrize(("mask", "outcome"), [("0,1", "passed"), ("1,7,0", "failed")])
def test_a_mask_with_a_wrong_entry_is_told(gpu_machine, mask, outcome):
    found = gpu_machine(gpus(2)).result(DOCTOR, CUDA_VISIBLE_DEVICES=mask)["GPUs in CUDA"]

    assert found[0] == outcome
    if outcome == "failed":
        assert "CUDA shows 1 of 2 GPUs, but CUDA_VISIBLE_DEVICES=1,7,0 names 3" in found[1]


def test_cuda_that_does_not_work_is_told(gpu_machine):
    machine = gpu_machine(f"{gpus(1)}\nfail cuInit 803")

    outcome, finding, _ = machine.result(DOCTOR)["GPUs in CUDA"]

    assert outcome == "failed"
    assert "cuInit failed with CUDA error 803" in finding


def test_divided_gpus_are_counted_as_cuda_does(gpu_machine):
    assert gpu_machine(divided_gpu(0, 2)).result(DOCTOR)["GPUs in CUDA"][0] == "passed"


@pytest.mark.parametrize(
    ("build", "driver", "outcome"),
    [
        ("'12.8'", 12080, "passed"),
        ("'12.8'", 12020, "passed"),  # newer builds run on older drivers of one major version
        ("'13.0'", 12080, "failed"),
        ("None", 12080, "failed"),
    ],
)
def test_torchs_cuda_is_compared_with_the_drivers_without_importing_torch(
    gpu_machine, tmp_path, build, driver, outcome
):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (package / "version.py").write_text(f"__version__ = '2.9'\ncuda: str | None = {build}\n")
    machine = gpu_machine(f"{gpus(1)}\ndriver version=570.86 cuda={driver}")

    found = machine.result(DOCTOR, PYTHONPATH=str(tmp_path))["torch and the driver"]

    assert found[0] == outcome
    assert found[2] if outcome == "failed" else True


def test_few_open_files_are_told(gpu_machine):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))\n{DOCTOR}"

    outcome, finding, next_step = gpu_machine("").result(code)["open files"]

    assert soft != 256
    assert outcome == "failed"
    assert "256" in finding
    assert "ulimit -n" in next_step


def test_errors_in_the_kernels_log_are_told(gpu_machine, tmp_path):
    log = tmp_path / "kmsg"
    log.write_text("3,1,2,-;NVRM: Xid (PCI:0000:08:00): 79, pid=7, GPU has fallen off the bus.\n")
    code = (
        "from pathlib import Path\nfrom jupyter_mgpu.diagnosis import gpu_checks\n"
        f"gpu_checks._KERNEL_LOG = Path({str(log)!r})\n"
    )

    found = gpu_machine(gpus(1)).result(code + DOCTOR)["XID errors"]
    log.unlink()
    unreadable = gpu_machine(gpus(1)).result(code + DOCTOR)["XID errors"]

    assert found[:2] == ["failed", "Since boot: XID 79 on 0000:08:00."]
    assert unreadable[0] == "skipped"
    assert "dmesg" in unreadable[2]


def test_a_driver_that_hangs_later_is_told_in_its_check(gpu_machine):
    found = gpu_machine(f"{gpus(2)}\nhang nvmlDeviceGetP2PStatus").result(DOCTOR)

    assert found["driver"][0] == "passed"
    assert found["peer-to-peer"][0] == "failed"
    assert "did not answer in 2 s" in found["peer-to-peer"][1]


def test_few_processes_are_told(gpu_machine):
    code = "from jupyter_mgpu import host\nhost.pids_limit = lambda: 100\n"

    outcome, finding, next_step = gpu_machine("").result(code + DOCTOR)["processes"]

    assert outcome == "failed"
    assert "100 processes and threads" in finding
    assert "--pids-limit" in next_step


def test_small_shared_memory_is_told(gpu_machine):
    code = (
        "import shutil\nfrom collections import namedtuple\n"
        "usage = namedtuple('usage', 'total used free')\n"
        "shutil.disk_usage = lambda path: usage(2**26, 0, 2**26)\n"
    )

    outcome, finding, next_step = gpu_machine("").result(code + DOCTOR)["shared memory"]

    assert outcome == "failed"
    assert "has 64 MiB" in finding
    assert "--shm-size" in next_step


def test_a_host_name_that_does_not_resolve_is_told(gpu_machine):
    code = "import socket; socket.gethostname = lambda: 'no-such-host.invalid'\n"

    outcome, finding, next_step = gpu_machine("").result(code + DOCTOR)["host name"]

    assert outcome == "failed"
    assert "does not resolve" in finding
    assert "/etc/hosts" in next_step


def test_loopback_works_here(gpu_machine):
    assert gpu_machine("").result(DOCTOR)["loopback"][0] == "passed"


@pytest.fixture
def adapter(tmp_path):
    """A folder like /sys/class/infiniband, and the code that has the doctor look there."""
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    facts = {"link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE"}
    for name, value in facts.items():
        (port / name).write_text(f"{value}\n")
    (tmp_path / "module").mkdir()
    code = (
        "from pathlib import Path\nfrom jupyter_mgpu.diagnosis import network_checks\n"
        f"network_checks._INFINIBAND = Path({str(tmp_path / 'infiniband')!r})\n"
        f"network_checks._MODULES = Path({str(tmp_path / 'module')!r})\n"
    )
    return tmp_path, code


def test_the_network_between_hosts_is_told(gpu_machine, adapter):
    folder, code = adapter
    machine = gpu_machine(gpus(1))

    without = machine.result(code + DOCTOR)
    (folder / "module" / "nvidia_peermem").mkdir()
    with_module = machine.result(code + DOCTOR, NCCL_IB_DISABLE="1")
    (folder / "infiniband" / "mlx5_0" / "ports" / "1" / "state").write_text("1: DOWN\n")
    down = machine.result(code + DOCTOR)

    assert without["InfiniBand"][0] == "passed"
    assert "mlx5_0 port 1 InfiniBand 400 Gb/sec (4X NDR) 4: ACTIVE" in without["InfiniBand"][1]
    assert without["GPUDirect RDMA"][0] == "failed"
    assert "modprobe nvidia_peermem" in without["GPUDirect RDMA"][2]
    assert with_module["GPUDirect RDMA"][0] == "passed"
    assert with_module["InfiniBand"][0] == "failed"
    assert down["InfiniBand"][0] == "failed"
    assert down["GPUDirect RDMA"][0] == "skipped"


@pytest.mark.parametrize(
    ("value", "outcome"), [("lo", "passed"), ("^lo", "passed"), ("=l", "failed"), ("ib7", "failed")]
)
def test_an_interface_that_is_not_there_is_told(gpu_machine, value, outcome):
    found = gpu_machine("").result(DOCTOR, NCCL_SOCKET_IFNAME=value)["network settings"]

    assert found[0] == outcome
    assert f"NCCL_SOCKET_IFNAME={value}" in found[1]


def test_a_check_that_breaks_or_hangs_costs_only_itself(gpu_machine):
    code = (
        "import threading\nfrom jupyter_mgpu import diagnosis as package\n"
        "def broken(): raise RuntimeError('surprise')\n"
        "def endless(): threading.Event().wait()\n"
        "result = [package._run('one', broken).finding, package._run('two', endless, 0.2).finding]"
    )

    broken, endless = gpu_machine("").result(code)

    assert "surprise" in broken
    assert "did not end in 0.2 s" in endless


def test_the_leases_are_shown_with_their_folder(gpu_machine):
    machine = gpu_machine(gpus(1))

    outcome, finding, _ = machine.result(DOCTOR)["GPU leases"]

    assert outcome == "passed"
    assert str(machine.lease_folder) in finding


def test_the_report_is_a_list_with_a_text_and_a_table(gpu_machine):
    told = gpu_machine(gpus(1)).result(
        "from jupyter_mgpu.diagnosis import doctor\nreport = doctor()\n"
        "result = [len(report), report[0].name, repr(report), report._repr_html_()]"
    )

    number, first, text, table = told
    assert number > 15
    assert first == "platform"
    assert text.splitlines()[-1].endswith("skipped.")
    assert table.startswith("<table>")
