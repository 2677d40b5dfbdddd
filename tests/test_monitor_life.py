"""One sampler for all who watch: when it begins, whom it tells, when it ends."""

import subprocess
import sys

import pytest
from gpu_stubs import gpu, gpu_uuid, gpus
from monitoring import answering, until

from jupyter_mgpu.errors import IntervalError
from jupyter_mgpu.monitor import Watch, check_interval, clamp_interval


def test_two_watches_cost_one_sampler_which_ends_with_the_last_of_them(gpu_machine):
    with answering(gpu_machine(gpus(2))) as ask:
        ask("first = Watch(0.5); second = Watch(0.5)")
        until(ask, "first.snapshot().gpus and second.snapshot().gpus")
        assert ask("result = threads()") == ["mgpu-monitor", "mgpu-nvml"]

        ask("first.close(); first.close()")
        number = ask("result = sampler._frame.number")
        until(ask, f"sampler._frame.number > {number}")

        ask("second.close()")
        until(ask, "threads() == ['mgpu-nvml']")


def test_many_watches_one_after_the_other_leave_no_thread(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("for _ in range(30):\n    with Watch() as watch: watch.snapshot()")

        until(ask, "'mgpu-monitor' not in threads()")
        ask("watch = Watch(0.5)")
        until(ask, "watch.snapshot().gpus and watch.snapshot().gpus[0].age_s < 2")


def test_a_watch_that_was_forgotten_does_not_keep_the_sampler(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("watch = Watch(0.5)")
        until(ask, "watch.snapshot().gpus")

        ask("del watch")

        until(ask, "'mgpu-monitor' not in threads()")


def test_a_slow_watch_is_told_at_its_own_pace(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("fast, slow = [], []")
        ask("one = Watch(0.5, on_sample=fast.append)")
        until(ask, "one.snapshot().gpus")  # until the driver has answered, all are told
        ask("other = Watch(60, on_sample=slow.append); begun = len(fast)")

        until(ask, "len(fast) >= begun + 5")

        assert ask("result = len(slow)") == 1


def test_the_interval_can_be_changed_while_one_watches(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("seen = []; watch = Watch(60, on_sample=seen.append)")
        until(ask, "seen")

        ask("watch.interval_s = 0.5")

        until(ask, "len(seen) >= 4")
        assert ask("result = watch.series('host', 'cpu_percent').step_s") == 0.5


def test_a_snapshot_is_not_as_old_as_a_slow_watch_lets_it_get(gpu_machine):
    machine = gpu_machine(gpu(0, util=10))
    with answering(machine) as ask:
        ask("watch = Watch(60)")
        until(ask, "watch.snapshot().gpus and watch.snapshot().gpus[0].age_s > 1.1")
        machine.write(gpu(0, util=20))

        assert ask("result = take_snapshot().gpus[0].utilization_percent") == 20


def test_a_driver_that_starts_slowly_does_not_keep_a_slow_watch_waiting(gpu_machine):
    machine = gpu_machine(f"{gpus(1)}\nhang nvmlInit")
    with answering(machine) as ask:
        ask("driver.INIT_TIMEOUT_S = 60; seen = []; watch = Watch(60, on_sample=seen.append)")
        until(ask, "seen")
        assert ask("result = watch.snapshot().gpus") == []

        machine.remove("hang nvmlInit")

        # Long before its next sample is due.
        until(ask, "watch.snapshot().gpus and seen[-1].gpus", timeout=45)


@pytest.mark.parametrize("seconds", [0.001, 0, -1, 61, float("inf")])
def test_an_interval_out_of_the_limits_is_refused_or_clamped_with_words(seconds):
    with pytest.raises(IntervalError, match=r"Use 0\.5 to 60 seconds"):
        Watch(seconds)

    allowed, note = clamp_interval(seconds)

    assert allowed == (0.5 if seconds < 1 else 60)
    assert note is not None
    assert "0.5 to 60" in note


@pytest.mark.parametrize("seconds", [None, "1", True, float("nan"), [1]])
def test_an_interval_that_is_no_number_is_refused(seconds):
    with pytest.raises(IntervalError, match="is no interval"):
        clamp_interval(seconds)


def test_an_interval_within_the_limits_is_taken_without_a_word():
    assert check_interval(2) == 2
    assert clamp_interval(0.5) == (0.5, None)


def test_a_view_that_fails_disturbs_no_other(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("import logging, io; log = io.StringIO(); logging.basicConfig(stream=log)")
        ask("seen = []; bad = Watch(0.5, on_sample=lambda s: 1 / 0, engines=lambda: 1 / 0)")
        ask("good = Watch(0.5, on_sample=seen.append)")

        until(ask, "len(seen) >= 3")

        # Once for each, not with every sample.
        assert ask("result = log.getvalue().count('ZeroDivisionError')") == 2


def test_a_view_that_blocks_makes_no_reader_wait(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("free = threading.Event()")
        ask("bad = Watch(0.5, on_sample=lambda taken: taken.gpus and free.wait())")
        ask("good = Watch(0.5)")

        until(ask, "good.snapshot().gpus and good.snapshot().gpus[0].state == 'stale'")
        values = ask("result = good.series('host', 'cpu_percent').values")
        assert values[-1] is None

        ask("bad.close(); free.set()")

        until(ask, "good.snapshot().gpus[0].state == 'ok'")


def test_files_of_the_host_that_cannot_be_read_cost_its_values_only(gpu_machine, tmp_path):
    strange = tmp_path / "cgroup"
    strange.write_text("strange\n")
    with answering(gpu_machine(gpus(1))) as ask:
        ask("from pathlib import Path; from jupyter_mgpu import host")
        ask(f"host._OWN_CGROUPS = Path({str(strange)!r}); watch = Watch(0.5)")
        until(ask, "watch.snapshot().gpus")
        read = ask("result = watch.snapshot().to_dict()['host']")
        assert read["memory_used_bytes"] is None
        assert "cannot be read here" in read["reasons"]["memory_used_bytes"]

        strange.write_text("0::/\n")

        until(ask, "watch.snapshot().host.memory_used_bytes")


def test_a_fault_of_a_tick_is_told_once_and_the_next_one_comes(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("import logging, io, psutil; log = io.StringIO(); logging.basicConfig(stream=log)")
        ask("asked = []; right, psutil.Process = psutil.Process, None")
        ask("engines = lambda: asked.append(1) or [EngineProcess(os.getpid(), 'mine', 0)]")
        ask("watch = Watch(0.5, engines=engines)")
        until(ask, "len(asked) >= 4")
        assert ask("result = log.getvalue().count('A sample could not be taken')") == 1

        ask("psutil.Process = right")

        until(ask, "watch.snapshot().engines")


def test_a_callback_may_close_its_own_watch(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("seen = []; made = threading.Event()")
        ask("def once(sample):\n    seen.append(sample); made.wait(); watch.close()")
        ask("watch = Watch(0.5, on_sample=once); made.set()")

        until(ask, "seen and 'mgpu-monitor' not in threads()")

        assert ask("result = len(seen)") == 1


def test_a_callback_may_ask_for_a_snapshot(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("mine = [EngineProcess(os.getpid(), 'mine', 0)]; seen = []")
        ask("watch = Watch(0.5, on_sample=lambda _: seen.append(take_snapshot(mine)))")

        until(ask, "len(seen) >= 3")


def test_the_history_goes_on_where_it_stopped_with_a_gap(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("watch = Watch(0.5)")
        until(ask, "len(watch.series('host', 'cpu_percent').values) >= 3")
        ask("watch.close()")
        until(ask, "sampler.series(('host', 'cpu_percent'), 120).values[-3:] == (None,) * 3")

        ask("watch = Watch(0.5)")

        until(ask, "watch.series('host', 'cpu_percent').values[-2:].count(None) == 0")
        values = ask("result = watch.series('host', 'cpu_percent').values")
        assert values[0] is not None
        assert None in values


def test_the_history_is_exported_as_a_table(gpu_machine):
    with answering(gpu_machine(f"{gpus(2)}\nfail nvmlDeviceGetPowerUsage 3 1")) as ask:
        ask("mine = [EngineProcess(os.getpid(), 'mine', 0)]")
        ask("watch = Watch(0.5, engines=lambda: mine); begun = time.time()")
        has_power = f"watch.series('{gpu_uuid(0)}', 'power_watts').values"
        until(ask, f"len(watch.history().rows) >= 3 and {has_power}")

        ask("table = watch.history(); frame = table.to_pandas()")
        columns = ask("result = list(frame.columns)")
        assert columns[:3] == ["at", "host cpu_percent", "host memory_used_bytes"]
        assert "GPU 1 temperature_celsius" in columns
        assert ask("result = f'mine:0 (pid {os.getpid()}) rss_bytes' in frame.columns")
        assert ask("result = 0 <= frame['at'].iloc[-1] - begun < 60 and len(frame) >= 3")
        assert ask("result = frame['GPU 0 power_watts'].dropna().unique().tolist()") == [120]
        assert ask("result = table.to_dict()['GPU 1 power_watts'][-1]") is None
        first, *rows = ask("result = table.to_csv().splitlines()")
        assert first.split(",") == columns
        assert len(rows) == ask("result = len(json.loads(table.to_json())['at'])")


def test_a_forked_child_does_not_sample_until_it_watches_itself(gpu_machine):
    with answering(gpu_machine(gpus(2))) as ask:
        ask("watch = Watch(0.5)")
        until(ask, "watch.snapshot().gpus")

        told = ask(
            "read, write = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    told = [threads(), len(watch.snapshot().gpus), len(take_snapshot().gpus)]\n"
            "    os.write(write, json.dumps(told).encode())\n"
            "    os._exit(0)\n"
            "os.close(write)\n"
            "result = json.loads(open(read).read())"
        )

        assert told == [[], 0, 2]
        number = ask("result = sampler._frame.number")
        until(ask, f"sampler._frame.number > {number}")


def test_the_workers_of_a_data_loader_do_not_sample(gpu_machine):
    told = gpu_machine(gpus(1)).result(
        "import threading\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "from jupyter_mgpu.monitor import Watch, take_snapshot\n"
        "class Names(Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, _): return [thread.name for thread in threading.enumerate()]\n"
        "with Watch(0.5):\n"
        "    taken = take_snapshot()\n"
        "    loader = DataLoader(Names(), batch_size=None, num_workers=2)\n"
        "    result = [len(taken.gpus), list(loader), Names()[0]]"
    )

    num_gpus, in_workers, here = told
    assert num_gpus == 1
    assert len(in_workers) == 4
    assert not any(name.startswith("mgpu") for names in in_workers for name in names)
    assert "mgpu-monitor" in here


def test_a_server_can_import_it_without_what_a_kernel_needs():
    heavy = ["IPython", "ipykernel", "ipyparallel", "torch", "pandas", "numpy", "pynvml", "zmq"]
    code = f"import sys, jupyter_mgpu.monitor; print([m for m in {heavy} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
