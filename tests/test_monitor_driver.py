"""A driver that is missing, that hangs, that loses GPUs: nobody waits for it, all of it is told."""

import pytest
from gpu_stubs import gpu, gpu_uuid, gpus
from monitoring import answering, until

TAKE = """
from jupyter_mgpu.monitor import take_snapshot
result = take_snapshot().to_dict()
"""


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("", "shows no GPU"),
        ("fail nvmlInit 4", "no permission"),
        ("fail nvmlInit 9", "kernel module is not loaded"),
        ("fail nvmlInit 12", "no NVIDIA driver"),
        ("fail nvmlInit 15", "a GPU of this machine is lost"),
        ("fail nvmlInit 18", "different versions"),
        *((f"fail nvmlInit {code}", "cannot be started") for code in (1, 2, 3, 10, 13, 25, 999)),
        ("fail nvmlDeviceGetCount 999", "cannot list its GPUs"),
    ],
)
def test_a_driver_that_cannot_be_used_leaves_the_host(gpu_machine, scenario, words):
    taken = gpu_machine(scenario).result(TAKE)

    assert words.lower() in taken["trouble"].lower()
    assert taken["gpus"] == []
    assert taken["host"]["memory_used_bytes"] > 0
    assert taken["host"]["cpu_percent"] is not None


def test_a_driver_that_is_mended_is_seen_without_a_restart(gpu_machine):
    machine = gpu_machine(f"{gpus(2)}\nfail nvmlInit 18")
    with answering(machine) as ask:
        ask("watch = Watch(0.5)")
        until(ask, "'different versions' in (watch.snapshot().trouble or '')")

        machine.remove("fail nvmlInit 18")

        until(ask, "len(watch.snapshot().gpus) == 2")
        assert ask("result = watch.snapshot().trouble") is None


def test_a_driver_in_trouble_is_asked_less_and_less_often(gpu_machine):
    machine = gpu_machine("fail nvmlInit 9")
    with answering(machine) as ask:
        ask("count_calls('nvmlInitWithFlags'); reader = gpu_reading.GpuReader()")
        tried = ask(
            "result = []\n"
            "for now in range(60):\n"
            "    before = counts.total()\n"
            "    reader.begin(now); reader.finish(now, 60)\n"
            "    if counts.total() > before: result.append(now)"
        )

    assert tried == [0, 1, 3, 7, 15, 31]


def test_a_lost_gpu_keeps_its_last_values_and_comes_back(gpu_machine):
    machine = gpu_machine(f"{gpu(0, util=10)}\n{gpu(1, util=20)}\n{gpu(2, util=30)}")
    with answering(machine) as ask:
        ask("sampling.FIND_LOST_EVERY_S = 0.2; watch = Watch(0.5)")
        until(ask, f"watch.series('{gpu_uuid(1)}', 'utilization_percent').values")

        machine.write(f"{gpu(0, util=11)}\n{gpu(1, lost=1)}\n{gpu(2, util=31)}")

        until(ask, "watch.snapshot().gpus[1].state == 'lost'")
        until(ask, "watch.snapshot().gpus[2].utilization_percent == 31")
        lost = ask("result = watch.snapshot().to_dict()['gpus'][1]")
        assert lost["utilization_percent"] == 20
        assert lost["reasons"] == {}
        until(ask, f"watch.series('{gpu_uuid(1)}', 'utilization_percent').values[-1] is None")
        until(ask, f"watch.snapshot().gpu('{gpu_uuid(1)}').age_s > 1")
        assert ask("result = watch.snapshot().trouble") is None

        machine.write(f"{gpu(0)}\n{gpu(1, util=21)}\n{gpu(2)}")

        until(ask, "watch.snapshot().gpus[1].state == 'ok'")
        until(ask, "watch.snapshot().gpus[1].utilization_percent == 21")


def test_a_gpu_that_vanishes_from_the_list_is_lost_and_the_others_go_on(gpu_machine):
    machine = gpu_machine(gpus(2))
    with answering(machine) as ask:
        ask("sampling.LIST_EVERY_S = 0.5; watch = Watch(0.5)")
        until(ask, "len(watch.snapshot().gpus) == 2")

        machine.write(gpu(0, util=7))

        until(ask, "[g.state for g in watch.snapshot().gpus] == ['ok', 'lost']")
        until(ask, "watch.snapshot().gpus[0].utilization_percent == 7")


def test_a_gpu_that_was_lost_from_the_start_is_there(gpu_machine):
    taken = gpu_machine(f"{gpu(0)}\n{gpu(1, lost=1)}").result(TAKE)

    assert [found["state"] for found in taken["gpus"]] == ["ok", "lost"]
    assert taken["gpus"][1]["age_s"] is None


def test_new_gpus_and_instances_appear_while_one_watches(gpu_machine):
    machine = gpu_machine(gpus(1))
    with answering(machine) as ask:
        ask("sampling.LIST_EVERY_S = 0.5; watch = Watch(0.5)")
        until(ask, "len(watch.snapshot().gpus) == 1")

        machine.write(gpus(3))

        until(ask, "len(watch.snapshot().gpus) == 3")


def test_a_hanging_driver_makes_nobody_wait_and_its_values_grow_stale(gpu_machine):
    hang = "hang nvmlDeviceGetPowerUsage 1"
    machine = gpu_machine(gpus(2))
    with answering(machine) as ask:
        ask("watch = Watch(0.5)")
        until(ask, f"watch.series('{gpu_uuid(0)}', 'power_watts').values")
        machine.add(hang)

        until(ask, "watch.snapshot().gpus[0].state == 'stale'")
        until(ask, "'did not answer' in (watch.snapshot().trouble or '')")
        number = ask("result = sampler._frame.number")
        until(ask, f"sampler._frame.number >= {number} + 3")  # the host goes on
        stale = ask("result = watch.snapshot().to_dict()")
        assert [found["state"] for found in stale["gpus"]] == ["stale", "stale"]
        assert stale["gpus"][0]["power_watts"] == 120
        assert stale["gpus"][0]["age_s"] >= 3
        until(ask, f"watch.snapshot().gpus[0].age_s > {stale['gpus'][0]['age_s']}")
        values = ask(f"result = watch.series('{gpu_uuid(0)}', 'power_watts').values")
        assert values[-1] is None
        until(ask, "watch.series('host', 'cpu_percent').values[-1] is not None")
        # One thread is stuck, however often it was asked.
        assert ask("result = threads()") == ["mgpu-monitor", "mgpu-nvml"]

        machine.remove(hang)

        until(ask, "[g.state for g in watch.snapshot().gpus] == ['ok', 'ok']")
        until(ask, "watch.snapshot().trouble is None")


def test_a_driver_that_hangs_at_its_start_leaves_the_host(gpu_machine):
    with answering(gpu_machine(f"{gpus(1)}\nhang nvmlInit")) as ask:
        ask("driver.INIT_TIMEOUT_S = 1; watch = Watch(0.5)")

        until(ask, "watch.snapshot().host.cpu_percent is not None")
        assert ask("result = watch.snapshot().gpus") == []
        until(ask, "'did not answer in 1 s' in (watch.snapshot().trouble or '')")


def test_a_hanging_driver_does_not_keep_the_process_from_ending(gpu_machine):
    machine = gpu_machine(f"{gpus(1)}\nhang nvmlDeviceGetName")

    told = machine.python(
        "from jupyter_mgpu.monitor import Watch, take_snapshot\n"
        "watch = Watch()\n"
        "print(take_snapshot().trouble)"
    )

    assert "did not answer" in told


def test_dear_questions_are_asked_less_often_and_hopeless_ones_rarely(gpu_machine):
    machine = gpu_machine(f"{gpus(1)}\nfail nvmlDeviceGetTemperature 3")
    names = ["UtilizationRates", "ComputeRunningProcesses", "EnforcedPowerLimit", "Temperature"]
    calls = [f"nvmlDeviceGet{name}" for name in names]
    others = ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", "nvmlDeviceGetPcieThroughput"]
    with answering(machine) as ask:
        ask(f"count_calls(*{calls + others}); start = time.monotonic(); watch = Watch(0.5)")
        until(ask, "counts['nvmlDeviceGetUtilizationRates'] >= 9")
        # In this order: a call between the two is then of the time, but not counted.
        counts, elapsed_s = ask("result = dict(counts), time.monotonic() - start")

    assert counts["nvmlDeviceGetComputeRunningProcesses"] <= 1 + elapsed_s / 2.7
    # Once, then kept: handles, names, limits, and that there is no thermometer.
    rarely = ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", "nvmlDeviceGetEnforcedPowerLimit"]
    assert {counts[name] for name in [*rarely, "nvmlDeviceGetTemperature"]} == {1}
    assert "nvmlDeviceGetPcieThroughput" not in counts  # it blocks for 20 ms


def test_what_was_not_supported_is_asked_again_some_time(gpu_machine):
    machine = gpu_machine(f"{gpus(1)}\nfail nvmlDeviceGetTemperature 3")
    with answering(machine) as ask:
        ask("sampling.ASK_UNSUPPORTED_EVERY_S = 1; watch = Watch(0.5)")
        until(ask, "watch.snapshot().gpus")
        assert ask("result = watch.snapshot().gpus[0].temperature_celsius") is None

        machine.remove("fail nvmlDeviceGetTemperature 3")

        until(ask, "watch.snapshot().gpus[0].temperature_celsius == 40")
        assert ask("result = watch.snapshot().gpus[0].reasons") == {}


def test_handles_of_an_earlier_session_are_not_used(gpu_machine):
    with answering(gpu_machine(gpus(2))) as ask:
        ask("count_calls('nvmlDeviceGetHandleByUUID', 'nvmlDeviceGetUtilizationRates')")
        ask("watch = Watch(0.5)")
        until(ask, "counts['nvmlDeviceGetUtilizationRates'] >= 4")
        assert ask("result = counts['nvmlDeviceGetHandleByUUID']") == 2

        ask("driver.driver.run(lambda nvml: nvml._rest())")  # as another library may, too

        until(ask, "counts['nvmlDeviceGetHandleByUUID'] == 4")
        until(ask, "[g.state for g in watch.snapshot().gpus] == ['ok', 'ok']")


def test_the_session_ends_when_nobody_asks_any_more(gpu_machine):
    with answering(gpu_machine(gpus(1))) as ask:
        ask("driver.REST_AFTER_S = 0.2; count_calls('nvmlShutdown', 'nvmlInitWithFlags')")
        ask("take_snapshot()")
        # A sampler that still runs would answer with what it has.
        until(ask, "counts['nvmlShutdown'] == 1 and not sampler.is_running")

        assert ask("result = len(take_snapshot().gpus)") == 1
        assert ask("result = counts['nvmlInitWithFlags']") == 2


def test_a_gpu_that_sleeps_is_not_woken(gpu_machine, tmp_path):
    device = tmp_path / "0000:01:00.0"
    (device / "power").mkdir(parents=True)
    for name, text in [("class", "0x030000"), ("vendor", "0x10de")]:
        (device / name).write_text(f"{text}\n")
    (device / "power" / "runtime_status").write_text("suspended\n")
    with answering(gpu_machine(gpus(1))) as ask:
        ask("from pathlib import Path; count_calls('nvmlInitWithFlags')")
        ask(f"sleeping._PCI_DEVICES = Path({str(tmp_path)!r}); watch = Watch(0.5)")
        until(ask, "'sleeps' in (watch.snapshot().trouble or '')")
        assert ask("result = counts") == {}

        (device / "power" / "runtime_status").write_text("active\n")

        until(ask, "len(watch.snapshot().gpus) == 1")
