"""The command line, as a person in a terminal or a script runs it."""

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from gpu_stubs import gpu, gpu_uuid

from jupyter_mgpu import cli, control
from notebooks import is_alive, notebook, wait_until

pytestmark = pytest.mark.usefixtures("own_runtime_folder")


def run(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "jupyter_mgpu.cli", *words]
    return subprocess.run(
        command, env=environment or dict(os.environ), capture_output=True, text=True, timeout=100
    )


def value(*words: str, environment: dict[str, str] | None = None):
    done = run(*words, "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def other():
    """A second notebook whose pool has the name of the first one's."""
    with notebook() as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 1")
        yield opened


def pools_of(pid: int) -> list[dict]:
    return [pool for pool in value("pools") if pool["kernel_pid"] == pid]


def test_pools_of_any_kernel_are_listed(nb):
    text = run("pools").stdout
    (pool,) = pools_of(nb.pid)

    assert "ready" in text
    assert pool["id"] in text
    assert (pool["name"], pool["state"]) == ("pool", "ready")
    assert [engine["state"] for engine in pool["status"]["engines"]] == ["idle", "idle"]


def test_tasks_are_listed_and_their_diaries_shown(nb):
    nb.check(
        "def talk():\n    print('hello from afar')\n    mgpu.report(step=1, loss=float('inf'))\n"
        "    import time; time.sleep(600)\n"
        "running = mgpu.parfeval(talk, name='talker')\n"
        "broken = mgpu.parfeval(lambda: [][1], name='broken')"
    )

    def tasks() -> dict[str, dict]:
        return {task["name"]: task for task in value("tasks")}

    wait_until(
        lambda: (
            (found := tasks()).get("broken", {}).get("state") == "failed"
            and found["talker"]["last_metrics"]
        ),
        60,
        "what they tell",
    )
    found = tasks()
    assert found["talker"]["last_metrics"] == {"step": 1, "loss": "Infinity"}
    assert found["broken"]["error"] == "IndexError: list index out of range"
    text = run("tasks").stdout
    assert "talker" in text
    assert "IndexError" in text
    wait_until(lambda: run("tasks", "talker").stdout.strip() == "hello from afar", 60, "the diary")
    assert "IndexError" in run("tasks", "broken").stdout
    missing = run("tasks", "nobody")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "No task 'nobody' runs or is on disk" in missing.stderr
    nb.check("running.cancel()")


def test_a_pool_is_stopped_by_its_id_where_names_are_equal(nb, other):
    (mine,) = pools_of(nb.pid)
    (theirs,) = pools_of(other.pid)

    unclear = run("stop", "pool")
    assert unclear.returncode == 1
    assert mine["id"] in unclear.stderr
    assert theirs["id"] in unclear.stderr

    done = run("stop", theirs["id"])

    assert done.returncode == 0, done.stderr
    assert done.stdout == "The pool 'pool' was stopped.\n"
    assert not any(is_alive(engine["pid"]) for engine in theirs["engines"])
    assert pools_of(nb.pid)


def test_the_pool_of_a_stopped_kernel_is_shown_and_stopped(other):
    (pool,) = control.find_pools()[-1:]
    assert pool.kernel_pid == other.pid
    os.kill(other.pid, signal.SIGSTOP)
    try:
        assert [found["state"] for found in pools_of(other.pid)] == ["silent"]
        assert "which does not answer" in run("tasks").stdout
        done = value("stop", pool.id)
        assert done["by"] == "signal"
        assert not any(is_alive(engine.pid) for engine in pool.engines)
    finally:
        os.kill(other.pid, signal.SIGCONT)


def test_an_unknown_pool_is_refused_with_the_ones_that_are_there(nb):
    (pool,) = pools_of(nb.pid)

    plain, as_json = run("stop", "nobody"), run("stop", "nobody", "--json")

    assert (plain.returncode, plain.stdout) == (1, "")
    assert "There is no pool 'nobody'. The pools are: " in plain.stderr
    assert f"'{pool['name']}'" in plain.stderr
    assert as_json.returncode == 1
    assert "There is no pool" in json.loads(as_json.stdout)["error"]


def test_gpus_are_listed_with_who_uses_them(gpu_machine):
    machine = gpu_machine("\n".join([gpu(0, util=37), gpu(1)]))
    with machine.foreign_process(1) as pid:
        text = run("gpus", environment=machine).stdout
        found = value("gpus", environment=machine)

    assert "NVIDIA H200" in text
    assert f"pid {pid}" in text
    assert [each["uuid"] for each in found["gpus"]] == [gpu_uuid(0), gpu_uuid(1)]
    assert found["gpus"][0]["utilization_percent"] == 37
    assert found["gpus"][1]["users"][0]["pid"] == pid


def test_without_a_driver_gpus_says_so():
    done = run("gpus")

    assert done.returncode == 0
    assert "no NVIDIA driver" in done.stdout
    assert value("gpus")["gpus"] == []


def test_the_doctor_answers_with_its_checks(gpu_machine):
    sick = gpu_machine(gpu(0))
    sick.add("fail nvmlInit_v2 18")

    done = run("doctor", environment=sick)

    assert done.returncode == 1
    assert "failed" in done.stdout
    checks = json.loads(run("doctor", "--json", environment=sick).stdout)
    assert {"name", "outcome", "finding", "next_step"} == set(checks[0])


@pytest.mark.parametrize("words", [[], ["dance"], ["stop"], ["pools", "--nonsense"]])
def test_a_line_that_makes_no_sense_is_refused(words):
    done = run(*words)

    assert done.returncode == 2
    assert "usage: jupyter mgpu" in done.stderr


def test_a_reader_that_goes_away_is_no_error():
    """As `jupyter mgpu doctor | head -1`; this reader has gone before anything is written."""
    command = f"{sys.executable} -m jupyter_mgpu.cli pools | true; echo ${{PIPESTATUS[0]}}"

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100)

    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_folder_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "jupyter_mgpu").write_text("in the way of the records")

    done = run("pools", environment={**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path)})

    assert (done.returncode, done.stdout) == (1, "")
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_jupyter_finds_the_command():
    (script,) = entry_points(group="console_scripts", name="jupyter-mgpu")

    assert script.load() is cli.main
