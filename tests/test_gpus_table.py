"""The table of GPUs: what is shown of each, and who uses it."""

import signal

from gpu_stubs import divided_gpu, gpu, gpu_uuid, gpus, other_pool


def test_in_a_container_engines_are_not_shown_twice(gpu_machine):
    machine = gpu_machine(f"{gpus(1)}\nprocess 0 pid=3999999 memory=500")
    with other_pool(machine, gpus="0", share=True, pool="mine"):
        text = machine.python(
            "from jupyter_mgpu import host\nhost.is_host_pid_namespace = lambda: False\n"
            "from jupyter_mgpu.gpus import gpu_table\nprint(gpu_table())"
        )

    assert "pool 'mine' rank 0" in text
    assert "not visible" not in text


TABLE = """
from jupyter_mgpu.gpus import gpu_table
table = gpu_table()
result = {"text": repr(table), "html": table._repr_html_(), "states": [r.state for r in table],
          "busy": [r.utilization_percent for r in table]}
"""


def test_the_table_shows_who_uses_which_gpu(gpu_machine):
    machine = gpu_machine(f"{gpu(0, used=2048, util=37)}\n{gpu(1)}\n{gpu(2)}")

    with machine.foreign_process(0) as pid, other_pool(machine, gpus="1", pool="mine"):
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

    with machine.foreign_process(0), other_pool(machine, gpus="1"):
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
    assert "UsageError %gpus takes --live or nothing, but got '3'" in told
