"""Which GPUs a pool gets: those asked for, or free ones, leased so that no two pools collide."""

import contextlib
import json
import signal
from pathlib import Path

import pytest
from gpu_stubs import HOLDING, choose, divided_gpu, gpu, gpus, mixed_gpus, other_pool


def test_a_pool_takes_every_free_gpu_by_default(gpu_machine):
    chosen = choose(gpu_machine(gpus(4)))

    assert chosen["ranks"] == [0, 1, 2, 3]
    assert chosen["leases"] == [1, 1, 1, 1]


def test_named_gpus_are_the_only_ones_taken(gpu_machine):
    machine = gpu_machine(gpus(8))

    with other_pool(machine, gpus="2-4") as (_, theirs):
        table = machine.python("from jupyter_mgpu.gpus import gpu_table; print(gpu_table())")

    assert theirs["masks"] == ["2", "3", "4"]
    users = [line.split("%")[1].split()[0] for line in table.splitlines()[1:]]
    assert users == ["nobody", "nobody", "pool", "pool", "pool", "nobody", "nobody", "nobody"]


def test_the_order_of_gpus_is_the_order_of_ranks(gpu_machine):
    assert choose(gpu_machine(gpus(4)), gpus="2,0")["masks"] == ["2", "0"]


def test_two_notebooks_never_get_the_same_gpu(gpu_machine):
    machine = gpu_machine(gpus(4))

    with other_pool(machine, n=2) as (_, first), other_pool(machine) as (_, second):
        assert first["masks"] == ["0", "1"]
        assert second["masks"] == ["2", "3"]


def test_notebooks_that_choose_at_the_same_moment_do_not_collide(gpu_machine):
    machine = gpu_machine(gpus(3))
    with contextlib.ExitStack() as stack:
        notebooks = [stack.enter_context(machine.start(HOLDING)) for _ in range(3)]
        for notebook in notebooks:
            assert notebook.stdout.readline() == "ready\n"
        for notebook in notebooks:
            notebook.stdin.write('{"n": 1}\n')
            notebook.stdin.flush()

        chosen = [json.loads(notebook.stdout.readline()) for notebook in notebooks]
        for notebook in notebooks:
            notebook.kill()

    assert sorted(told["masks"][0] for told in chosen) == ["0", "1", "2"]


def test_a_leased_gpu_is_refused_with_its_holder_and_the_ways_out(gpu_machine):
    machine = gpu_machine(gpus(2))

    with other_pool(machine, gpus="1", pool="theirs", notebook="deep.ipynb") as (pid, _):
        refused = choose(machine, gpus="1")

    assert refused["error"] == "GpuBusyError"
    assert "GPU 1 is used by pool 'theirs' rank 0" in refused["words"]
    assert f"pid {pid}, notebook deep.ipynb" in refused["words"]
    assert all(way in refused["words"] for way in ("--wait", "--share", "other GPUs"))


def test_a_gpu_is_free_again_when_its_notebook_was_killed(gpu_machine):
    machine = gpu_machine(gpus(1))
    with other_pool(machine):
        pass

    assert choose(machine, gpus="0")["masks"] == ["0"]


def test_a_foreign_process_keeps_its_gpu_and_is_named(gpu_machine):
    machine = gpu_machine(gpus(2))

    with machine.foreign_process(0) as pid:
        chosen = choose(machine)
        refused = choose(machine, gpus="0")

    assert chosen["masks"] == ["1"]
    assert any(f"pid {pid}, user " in s and "left out" in s for s in chosen["sentences"])
    assert refused["error"] == "GpuBusyError"
    assert f"(pid {pid}, user " in refused["words"]


def test_memory_in_use_without_a_process_keeps_a_gpu_from_being_free(gpu_machine):
    machine = gpu_machine(f"{gpu(0, used=499)}\n{gpu(1, used=9000)}")

    chosen = choose(machine)
    refused = choose(machine, gpus="1")

    assert chosen["masks"] == ["0"]
    assert "a process that the driver does not name (8.8 GiB)" in refused["words"]


def test_memory_counts_also_where_processes_cannot_be_listed(gpu_machine):
    machine = gpu_machine(
        f"{gpu(0, used=9000)}\n{gpu(1)}\nfail nvmlDeviceGetComputeRunningProcesses 3"
    )

    assert choose(machine)["masks"] == ["1"]


def test_the_notebooks_own_gpu_counts_as_free_comes_last_and_is_told(gpu_machine):
    machine = gpu_machine(gpus(3))

    chosen = choose(machine, before="use_this_gpu(0)")

    assert chosen["masks"] == ["1", "2", "0"]
    assert "GPU 0 is used by this notebook itself as well." in chosen["sentences"]


def test_a_notebook_with_the_only_gpu_in_use_can_still_start_a_pool(gpu_machine):
    assert choose(gpu_machine(gpus(1)), before="use_this_gpu(0)", n=1)["masks"] == ["0"]


def test_in_a_container_the_notebook_knows_itself_by_its_cuda_context(gpu_machine):
    # The driver shows the host's pid, which means nothing inside.
    machine = gpu_machine(f"{gpus(2)}\nprocess 0 pid=3999999 memory=500")
    before = (
        "from jupyter_mgpu import host\n"
        "host.is_host_pid_namespace = lambda: False\n"
        "import ctypes; ctypes.CDLL(os.environ['MGPU_LIBCUDA']).cuInit(0)\n"
        "with open(os.environ['MGPU_STUB_SCENARIO'], 'a') as file:\n"
        "    file.write(f'context 0 pid={os.getpid()}\\n')"
    )

    chosen = choose(machine, before=before)

    assert chosen["masks"] == ["1", "0"]
    assert "GPU 0 is used by this notebook itself as well." in chosen["sentences"]
    assert any(s.startswith("In a container") for s in chosen["sentences"])


def test_in_a_container_a_pid_of_the_host_is_not_taken_for_somebody_here(gpu_machine):
    machine = gpu_machine(gpus(1))
    with machine.start("input()") as innocent:  # bears the number, but has nothing of CUDA
        machine.add(f"process 0 pid={innocent.pid} memory=500")
        refused = choose(
            machine,
            before="from jupyter_mgpu import host\nhost.is_host_pid_namespace = lambda: False",
            gpus="0",
        )
        innocent.communicate("\n")

    assert f"a process not visible from here (pid {innocent.pid} on the host)" in refused["words"]


def test_share_takes_gpus_that_others_use_and_says_so(gpu_machine):
    machine = gpu_machine(gpus(2))

    with other_pool(machine, gpus="0"), machine.foreign_process(1) as pid:
        named = choose(machine, gpus="0,1", share=True)
        any_of_them = choose(machine, n=2, share=True)

    assert named["masks"] == ["0", "1"]
    assert sorted(any_of_them["masks"]) == ["0", "1"]
    assert any(f"pid {pid}" in s and "shared" in s for s in named["sentences"])


def test_several_engines_can_share_each_gpu(gpu_machine):
    chosen = choose(gpu_machine(gpus(2)), per_gpu=2)

    assert chosen["masks"] == ["0", "0", "1", "1"]
    assert chosen["leases"] == [1, 1, 1, 1]
    assert all(chosen["proven"])


def test_an_odd_number_of_engines_shares_gpus_too(gpu_machine):
    assert choose(gpu_machine(gpus(4)), n=3, per_gpu=2)["masks"] == ["0", "0", "1"]


@pytest.mark.parametrize(
    ("number", "masks"), [(1, ["0"]), (3, ["0", "1", "2"]), (6, ["0", "1", "2", "3"])]
)
def test_a_range_takes_as_many_as_possible_within_it(gpu_machine, number, masks):
    assert choose(gpu_machine(gpus(number)), n=(1, 4))["masks"] == masks


def test_a_range_whose_least_is_not_free_names_who_holds_the_rest(gpu_machine):
    machine = gpu_machine(gpus(3))

    with other_pool(machine, n=2, pool="theirs"):
        refused = choose(machine, n=(2, 4))

    assert refused["error"] == "GpuBusyError"
    assert "2 engines need 2 GPUs, but 1 of 3 are free" in refused["words"]
    assert len(refused["holders"]) == 2


def test_more_engines_than_gpus_is_an_error_with_the_numbers(gpu_machine):
    refused = choose(gpu_machine(gpus(2)), n=4)

    assert refused["error"] == "SelectionError"
    assert "4 engines need 4 GPUs, but this notebook may use 2: 0, 1." in refused["words"]
    assert "--per-gpu" in refused["words"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"n": 0}, "Ask for 1 or more"),
        ({"n": (3, 2)}, "the first number is the least that will do"),
        ({"per_gpu": 0}, "at least 1"),
        ({"per_gpu": 2, "gpus_per_engine": 2}, "exclude each other"),
        ({"gpus": "0,1,2", "gpus_per_engine": 2}, "do not divide"),
        ({"n": 3, "gpus": "0,1"}, "3 engines were asked for, but --gpus 0,1 makes 2"),
        ({"n": (3, 4), "gpus": "0,1"}, "3 to 4 engines were asked for"),
        ({"gpus": "7"}, "GPU 7 was requested, but this machine has: 0, 1, 2, 3"),
        ({"gpus": ""}, "--gpus without a value"),
        ({"gpus": "4"}, "GPU 4 cannot be used: the GPU is lost"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(gpu_machine, request_, words):
    refused = choose(gpu_machine(f"{gpus(4)}\n{gpu(4, lost=1)}"), **request_)

    assert words in refused["words"]
    assert "\n" not in refused["words"]


def test_a_refusal_leaves_no_lease_behind(gpu_machine):
    machine = gpu_machine(divided_gpu(0, 2))

    refused = choose(machine, visible="pool")

    assert "one MIG instance only" in refused["words"]
    assert list(machine.lease_folder.glob("*.lease")) == []


def test_without_gpus_the_engines_run_on_the_cpu_and_see_none(gpu_machine):
    chosen = choose(gpu_machine(""), n=3)

    assert chosen["masks"] == ["", "", ""]
    assert chosen["uuids"] == [[], [], []]
    assert chosen["leases"] == [0, 0, 0]
    assert "The engines run on the CPU." in chosen["sentences"][0]


def test_the_number_of_cpu_engines_comes_with_its_reason(gpu_machine):
    chosen = choose(gpu_machine(""))

    assert 1 <= len(chosen["ranks"]) <= 8
    assert f"{len(chosen['ranks'])} CPU engine" in chosen["sentences"][-1]


def test_asking_for_gpus_on_a_machine_without_any_says_why(gpu_machine):
    refused = choose(gpu_machine("fail nvmlInit 9"), gpus="0")

    assert refused["error"] == "SelectionError"
    assert "--gpus 0 was asked for, but no GPU can be used." in refused["words"]
    assert "kernel module is not loaded" in refused["words"]


def test_a_hanging_driver_makes_cpu_engines_and_says_so(gpu_machine):
    chosen = choose(gpu_machine(f"{gpus(1)}\nhang nvmlDeviceGetCount"), n=1)

    assert chosen["masks"] == [""]
    assert "did not answer in 2 s" in chosen["sentences"][0]


def test_a_growing_pool_gets_the_next_ranks(gpu_machine):
    machine = gpu_machine(gpus(4))

    with other_pool(machine, n=2):
        chosen = choose(machine, n=2, first_rank=2)

    assert chosen["ranks"] == [2, 3]
    assert chosen["masks"] == ["2", "3"]


REAL_POOL = """
from jupyter_mgpu.start import parpool
pool = parpool(gpus="1,3", name="mine")
print("PIDS", *[engine.pid for engine in pool.status().engines], flush=True)
input()
"""
AFTER = """
from pathlib import Path
from jupyter_mgpu.gpus import Request, wait_for_free
wait_for_free(Request(gpus="1,3"), timeout=30, poll_s=0.1)
def state(pid):
    try: return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError: return "gone"
result = [state(pid) for pid in PIDS]
"""


def test_the_engines_of_a_killed_notebook_end_before_their_gpus_are_free(gpu_machine):
    machine = gpu_machine(mixed_gpus())
    with machine.start(REAL_POOL) as notebook:
        told = next(line for line in notebook.stdout if line.startswith("PIDS"))
        pids = [int(pid) for pid in told.split()[1:]]
        environments = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in pids]
        refused = choose(machine, gpus="3")
        machine.add(f"process 1 pid={pids[0]} memory=100")
        table = machine.python("from jupyter_mgpu.gpus import gpu_table; print(gpu_table())")
        machine.remove(f"process 1 pid={pids[0]} memory=100")
        notebook.send_signal(signal.SIGKILL)

        states = machine.result(AFTER.replace("PIDS", repr(pids)))

    for environment, mask in zip(environments, (b"1", b"3"), strict=True):
        assert b"CUDA_VISIBLE_DEVICES=" + mask in environment
        assert b"CUDA_DEVICE_ORDER=PCI_BUS_ID" in environment
    assert "GPU 3 is used by pool 'mine' rank 1" in refused["words"]
    assert f"pool 'mine' rank 0 (pid {pids[0]}, user " in table
    assert set(states) <= {"Z", "X", "gone"}
