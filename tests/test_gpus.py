"""The table of GPUs, and which of them a pool gets: free ones, pinned, leased and proven."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_stubs import GpuMachine, divided_gpu, gpu, gpu_uuid, gpus, mig_uuid, mixed_gpus

CHOOSE = """
import json, os, sys
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.gpus import Request, choose, wait_for_free
def attempt(**request):
    try:
        choice = choose(Request(**request))
    except MgpuError as error:
        return {"error": type(error).__name__, "words": str(error),
                "holders": list(getattr(error, "holders", []))}
    proofs = choice.prove()
    return {
        "ranks": [slot.rank for slot in choice.slots],
        "uuids": [[device.uuid for device in slot.devices] for slot in choice.slots],
        "masks": [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in choice.slots],
        "orders": [slot.environment["CUDA_DEVICE_ORDER"] for slot in choice.slots],
        "leases": [len(slot.lease_paths) for slot in choice.slots],
        "proven": [proof.is_proven for proof in proofs],
        "sentences": list(choice.sentences),
    }
def use_this_gpu(index):
    with open(os.environ["MGPU_STUB_SCENARIO"], "a") as file:
        file.write(f"process {index} pid={os.getpid()} memory=500\\n")
"""
HOLDING = (
    CHOOSE.replace("choice = choose", "global choice; choice = choose")
    + """
print("ready", flush=True)
print(json.dumps(attempt(**json.loads(sys.stdin.readline()))), flush=True)
sys.stdin.readline()
"""
)


def choose(machine: GpuMachine, before: str = "", **request: object):
    return machine.result(f"{CHOOSE}\n{before}\nresult = attempt(**{request!r})")


@contextlib.contextmanager
def pool(machine: GpuMachine, **request: object) -> Iterator[tuple[int, dict]]:
    """Another notebook that has chosen; yields its pid and what it got."""
    with machine.start(HOLDING) as process:
        process.stdout.readline()
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        yield process.pid, json.loads(process.stdout.readline())
        process.send_signal(signal.SIGKILL)


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


def test_a_pool_takes_every_free_gpu_by_default(gpu_machine):
    chosen = choose(gpu_machine(gpus(4)))

    assert chosen["ranks"] == [0, 1, 2, 3]
    assert chosen["leases"] == [1, 1, 1, 1]


def test_named_gpus_are_the_only_ones_taken(gpu_machine):
    machine = gpu_machine(gpus(8))

    with pool(machine, gpus="2-4") as (_, theirs):
        table = machine.python("from jupyter_mgpu.gpus import gpu_table; print(gpu_table())")

    assert theirs["masks"] == ["2", "3", "4"]
    users = [line.split("%")[1].split()[0] for line in table.splitlines()[1:]]
    assert users == ["nobody", "nobody", "pool", "pool", "pool", "nobody", "nobody", "nobody"]


def test_the_order_of_gpus_is_the_order_of_ranks(gpu_machine):
    assert choose(gpu_machine(gpus(4)), gpus="2,0")["masks"] == ["2", "0"]


def test_two_notebooks_never_get_the_same_gpu(gpu_machine):
    machine = gpu_machine(gpus(4))

    with pool(machine, n=2) as (_, first), pool(machine) as (_, second):
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

    with pool(machine, gpus="1", pool="theirs", notebook="deep.ipynb") as (pid, _):
        refused = choose(machine, gpus="1")

    assert refused["error"] == "GpuBusyError"
    assert "GPU 1 is used by pool 'theirs' rank 0" in refused["words"]
    assert f"pid {pid}, notebook deep.ipynb" in refused["words"]
    assert all(way in refused["words"] for way in ("--wait", "--share", "other GPUs"))


def test_a_gpu_is_free_again_when_its_notebook_was_killed(gpu_machine):
    machine = gpu_machine(gpus(1))
    with pool(machine):
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


def test_in_a_container_engines_are_not_shown_twice(gpu_machine):
    machine = gpu_machine(f"{gpus(1)}\nprocess 0 pid=3999999 memory=500")
    with pool(machine, gpus="0", share=True, pool="mine"):
        text = machine.python(
            "from jupyter_mgpu import host\nhost.is_host_pid_namespace = lambda: False\n"
            "from jupyter_mgpu.gpus import gpu_table\nprint(gpu_table())"
        )

    assert "pool 'mine' rank 0" in text
    assert "not visible" not in text


def test_share_takes_gpus_that_others_use_and_says_so(gpu_machine):
    machine = gpu_machine(gpus(2))

    with pool(machine, gpus="0"), machine.foreign_process(1) as pid:
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


@pytest.mark.parametrize(
    ("number", "masks"), [(1, ["0"]), (3, ["0", "1", "2"]), (6, ["0", "1", "2", "3"])]
)
def test_a_range_takes_as_many_as_possible_within_it(gpu_machine, number, masks):
    assert choose(gpu_machine(gpus(number)), n=(1, 4))["masks"] == masks


def test_a_range_whose_least_is_not_free_names_who_holds_the_rest(gpu_machine):
    machine = gpu_machine(gpus(3))

    with pool(machine, n=2, pool="theirs"):
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
        ({"n": (3, 2)}, "Ask for 1 or more"),
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

    with pool(machine, n=2):
        chosen = choose(machine, n=2, first_rank=2)

    assert chosen["ranks"] == [2, 3]
    assert chosen["masks"] == ["2", "3"]


WAIT = (
    CHOOSE
    + """
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

    with pool(machine, pool="theirs") as (pid, _), machine.start(WAIT % 30) as waiting:
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


TABLE = """
from jupyter_mgpu.gpus import gpu_table
table = gpu_table()
result = {"text": repr(table), "html": table._repr_html_(), "states": [r.state for r in table],
          "busy": [r.utilization_percent for r in table]}
"""


def test_the_table_shows_who_uses_which_gpu(gpu_machine):
    machine = gpu_machine(f"{gpu(0, used=2048, util=37)}\n{gpu(1)}\n{gpu(2)}")

    with machine.foreign_process(0) as pid, pool(machine, gpus="1", pool="mine"):
        told = machine.result(TABLE)

    lines = told["text"].splitlines()
    assert "NVIDIA H200" in lines[1]
    assert "9.0" in lines[1]
    assert "2.0 / 141.0" in lines[1]
    assert "37 %" in lines[1]
    assert f"(pid {pid}, user " in lines[1]
    assert "pool 'mine' rank 0" in lines[2]
    assert "nobody" in lines[3]
    assert "<td>NVIDIA H200</td>" in told["html"]


def test_an_engines_process_is_told_by_pool_and_rank(gpu_machine):
    machine = gpu_machine(gpus(2))
    engine = (
        "import os, sys\nfrom jupyter_mgpu.gpus import Request, choose\n"
        "import subprocess\nchoice = choose(Request(n=2, pool='mine'))\n"
        "child = subprocess.Popen([sys.executable, '-c', 'print(flush=True); input()'],"
        " env={**os.environ, **choice.slots[1].environment})\n"
        "print(child.pid, flush=True); input(); child.kill()"
    )
    with machine.start(engine) as process:
        pids = {process.stdout.readline().strip() for _ in range(2)} - {""}
        machine.add(f"process 1 pid={pids.pop()} memory=100")
        rows = machine.result(
            "from jupyter_mgpu import host\nhost.is_host_pid_namespace = lambda: True\n"
            "from jupyter_mgpu.gpus import gpu_table\n"
            "result = [[(u.pid, u.lease and u.lease.rank) for u in r.users] for r in gpu_table()]"
        )
        process.send_signal(signal.SIGKILL)

    assert rows[1][0][1] == 1
    assert len(rows[1]) == 1


def test_unknown_values_read_na_and_never_zero(gpu_machine):
    calls = ("MemoryInfo", "MemoryInfo_v2", "UtilizationRates", "Name", "CudaComputeCapability")
    fails = "\n".join(f"fail nvmlDeviceGet{call} 3" for call in calls)

    told = gpu_machine(f"{gpus(1)}\n{fails}").result(TABLE)

    cells = told["text"].splitlines()[1].split()
    assert cells.count("n/a") == 3
    assert "not supported" in told["html"]
    assert told["busy"] == [None]


def test_processes_that_cannot_be_listed_read_na(gpu_machine):
    told = gpu_machine(f"{gpus(1)}\nfail nvmlDeviceGetComputeRunningProcesses 4").result(TABLE)

    assert "n/a" in told["text"].splitlines()[1]
    assert "processes: no permission" in told["html"]


def test_a_lost_gpu_is_a_row_of_its_own(gpu_machine):
    told = gpu_machine(f"{gpu(0)}\n{gpu(1, lost=1)}\n{gpu(2)}").result(TABLE)

    assert told["states"] == ["ok", "lost", "ok"]
    assert "lost" in told["text"].splitlines()[2]


def test_mig_instances_stand_below_their_gpu(gpu_machine):
    machine = gpu_machine(f"{divided_gpu(0, 2)}\n{gpu(1)}\nprocess 0 pid=99 memory=5 instance=1")

    lines = machine.result(TABLE)["text"].splitlines()

    assert [line.split("  ")[0] for line in lines[1:]] == ["0", "0 MIG 0", "0 MIG 1", "1"]
    assert "its MIG instances" in lines[1]
    assert "nobody" in lines[2]
    assert "pid 99" in lines[3]


def test_without_gpus_the_table_is_one_sentence_with_the_next_step(gpu_machine):
    told = gpu_machine("fail nvmlInit 18").result(TABLE)

    assert "different versions" in told["text"]
    assert "Reboot" in told["text"]
    assert told["html"].startswith("<p>")
    assert told["states"] == []


def test_the_table_becomes_a_data_frame(gpu_machine):
    told = gpu_machine(f"{gpus(2)}\nfail nvmlDeviceGetUtilizationRates 3 1").result(
        "from jupyter_mgpu.gpus import gpu_table\n"
        "frame = gpu_table().to_pandas()\n"
        "result = [list(frame['gpu']), bool(frame['utilization_percent'].isna()[1])]"
    )

    assert told == [["GPU 0", "GPU 1"], True]


def test_gpus_are_counted_in_all_and_as_available(gpu_machine):
    machine = gpu_machine(f"{gpus(3)}\n{divided_gpu(3, 2)}")
    code = "from jupyter_mgpu.gpus import gpu_count\nresult = [gpu_count(), gpu_count('available')]"

    with machine.foreign_process(0), pool(machine, gpus="1"):
        counts = machine.result(code)
    machine["CUDA_VISIBLE_DEVICES"] = gpu_uuid(2)

    assert counts == [5, 3]
    assert machine.result(code) == [1, 1]
    assert gpu_machine("").result(code) == [0, 0]


def test_percent_gpus_shows_the_table_and_refuses_arguments(gpu_machine):
    told = gpu_machine(gpus(1)).python(
        "from IPython.testing.globalipapp import start_ipython\n"
        "shell = start_ipython()\n"
        "from jupyter_mgpu.magics.gpus import GpusMagic\n"
        "shell.register_magics(GpusMagic)\n"
        "print(shell.run_line_magic('gpus', ''))\n"
        "try: shell.run_line_magic('gpus', '3')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )

    assert "NVIDIA H200" in told
    assert "UsageError %gpus takes no arguments" in told


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
