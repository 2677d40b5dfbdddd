"""Pools of real kernels, seen and acted on through the server: busy, stopped, killed, orphaned."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_servers import *  # noqa: F403 - fixtures
from jupyter_servers import Reply
from server_processes import guards_of

from jupyter_mgpu import control
from jupyter_mgpu.control import actions
from jupyter_mgpu.owner import endpoint, records
from notebooks import Notebook, is_alive, notebook, wait_until

pytestmark = pytest.mark.usefixtures("own_runtime_folder")


@pytest.fixture
def fresh() -> Notebook:
    """A notebook of its own with a pool of two CPU engines, for tests that end either."""
    with notebook() as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 2 --name mine")
        yield opened


UNTIL_TOLD = "import time\nwhile mgpu.current_pool(): time.sleep(0.02)"
"""The record goes first; the kernel takes the pool for ended a moment later."""


def pool_of(nb: Notebook) -> control.FoundPool:
    (pool,) = [pool for pool in control.find_pools() if pool.kernel_pid == nb.pid]
    return pool


def tasks_of(shown: dict, pool_id: str) -> dict[str, dict]:
    return {row["name"]: row for row in shown["tasks"].values() if row["pool"] == pool_id}


def running_task(shown: dict, pool_id: str, name: str) -> dict | None:
    row = tasks_of(shown, pool_id).get(name)
    return row if row and row["state"] == "running" else None


def test_a_pool_is_shown_with_its_engines_and_tasks(api, nb):
    pool = pool_of(nb)
    nb.check("import time\nlong = mgpu.parfeval(time.sleep, 600, name='long')")
    nb.check("bad = mgpu.parfeval(lambda: 1 / 0, name='bad')")

    def is_there(shown: dict) -> dict | None:
        states = {name: row["state"] for name, row in tasks_of(shown, pool.id).items()}
        return shown if states == {"long": "running", "bad": "failed"} else None

    shown = api.wait_until(is_there)

    row = shown["pools"][pool.id]
    assert (row["name"], row["state"], row["running"]) == ("pool", "busy", 1)
    assert (row["kernel_pid"], row["here"], row["code"]) == (nb.pid, False, "%parpool 2")
    tasks = tasks_of(shown, pool.id)
    assert tasks["bad"]["error"] == "ZeroDivisionError: division by zero"
    assert tasks["bad"]["finished"] >= tasks["bad"]["started"] > time.time_ns() / 1e9 - 3600
    engines = [shown["engines"][f"{pool.id}/{rank}"] for rank in (0, 1)]
    (busy,) = [engine for engine in engines if engine["state"] == "busy"]
    assert (busy["task"], busy["task_id"]) == ("long", tasks["long"]["id"])
    assert all(engine["rss"] > 2**20 and engine["device"] == "CPU" for engine in engines)
    nb.check("long.cancel()")


def test_a_kernel_loads_nothing_of_the_server(nb):
    loaded = nb.value("sorted(name for name in __import__('sys').modules if 'server' in name)")

    assert [name for name in loaded if name.startswith(("jupyter_server", "jupyter_mgpu"))] == []


def test_a_task_is_cancelled_while_the_kernel_is_busy(api, nb):
    pool = pool_of(nb)
    cell = nb.submit(
        "import time\nstuck = mgpu.parfeval(time.sleep, 600, name='stuck')\nstuck.result()"
    )
    task = api.wait_until(lambda shown: tasks_of(shown, pool.id).get("stuck"))

    reply = api("POST", f"pools/{pool.id}/cancel", {"task": task["id"]})

    assert reply.json["ok"]
    assert reply.json["by"] == "owner"
    assert nb.wait(cell).ename == "CancelledError"
    again = api("POST", f"pools/{pool.id}/cancel", {"task": task["id"]})
    assert again.code == 409
    assert "it may have ended" in again.words


def test_tasks_have_an_order_that_stays_while_others_come_and_go(api, nb):
    pool = pool_of(nb)
    nb.check(
        "import time\n"
        "blockers = [mgpu.parfeval(time.sleep, 600, name=f'blocker {i}') for i in range(2)]\n"
        "late = mgpu.parfeval(time.sleep, 0, name='late')\n"
        "urgent = mgpu.parfeval(time.sleep, 0, name='urgent', priority=1)"
    )
    names = ["blocker 0", "blocker 1", "urgent", "late"]

    def ordered(shown: dict) -> list[str]:
        rows = [row for row in tasks_of(shown, pool.id).values() if row["name"] in names]
        return [row["name"] for row in sorted(rows, key=lambda row: row["order"])]

    shown = api.wait_until(lambda shown: shown if ordered(shown) == names else None)
    nb.check("urgent.cancel()")
    later = api.wait_until(
        lambda shown: shown if ordered(shown) == ["blocker 0", "blocker 1", "late", "urgent"] else 0
    )

    for name in ("blocker 0", "late"):
        rows = [tasks_of(each, pool.id)[name] for each in (shown, later)]
        assert rows[0] == rows[1]
    nb.check("mgpu.cancel_all()")


def test_a_stuck_cell_is_interrupted(api, nb):
    pool = pool_of(nb)
    cell = nb.submit("%%spmd\nimport time\ntime.sleep(600)")
    api.wait_until(  # that of the test before may still hold the engines
        lambda shown: [
            row
            for row in tasks_of(shown, pool.id).values()
            if (row["kind"], row["state"]) == ("cell", "running")
        ]
    )

    reply = api("POST", f"pools/{pool.id}/interrupt")

    assert reply.json["words"] == "1 task on the pool 'pool' was interrupted."
    assert nb.wait(cell).ename == "KeyboardInterrupt"
    assert api("POST", f"pools/{pool.id}/interrupt").json["words"].startswith("Nothing runs")
    assert nb.check("%%spmd\nprint(rank)").ok


def test_a_loop_is_one_row_and_is_cancelled_as_one(api, nb):
    pool = pool_of(nb)
    cell = nb.submit("import time\nmgpu.parfor(lambda i: time.sleep(0.2), range(10_000))")

    def is_loop(shown: dict) -> list:
        return [row for row in tasks_of(shown, pool.id).values() if row["kind"] == "loop"]

    (loop,) = api.wait_until(is_loop)
    refused = api("POST", f"pools/{pool.id}/request-stop", {"task": loop["id"]})
    reply = api("POST", f"pools/{pool.id}/cancel", {"task": loop["id"]})

    assert refused.code == 409
    assert "loop" in refused.words
    assert reply.code == 200
    assert not nb.wait(cell).ok
    api.wait_until(lambda shown: not is_loop(shown))


def test_a_training_is_asked_to_end_by_itself(api, nb):
    pool = pool_of(nb)
    nb.check(
        "import time\n"
        "def train():\n"
        "    step = 0\n"
        "    while not mgpu.stop_requested():\n"
        "        step += 1\n"
        "        mgpu.report(step=step, loss=float('nan'), rate=0.5)\n"
        "        time.sleep(0.02)\n"
        "    print('ended by itself')\n"
        "    return step\n"
        "future = mgpu.parfeval(train, name='training')"
    )
    task = api.wait_until(
        lambda shown: (row := tasks_of(shown, pool.id).get("training")) and row["metrics"] and row
    )
    assert task["metrics"] == {"loss": "NaN", "rate": 0.5}
    assert task["step"] >= 1

    body = {"task": task["id"], "after": "step"}
    assert api("POST", f"pools/{pool.id}/request-stop", body).code == 200

    nb.check("assert future.result(60) >= 1")
    shown = api.wait_until(
        lambda shown: (row := tasks_of(shown, pool.id)["training"])["state"] == "finished" and row
    )
    assert shown["error"] is None
    diary = api("GET", f"pools/{pool.id}/diary", params={"task": task["id"]})
    assert diary.json["text"].strip() == "ended by itself"


def test_logs_and_diaries_are_read_while_tasks_run(api, nb):
    pool = pool_of(nb)
    nb.check(
        "import time\ndef chat():\n    print('hello out there')\n    time.sleep(600)\n"
        "talk = mgpu.parfeval(chat, name='talk')"
    )
    task = api.wait_until(lambda shown: running_task(shown, pool.id, "talk"))

    def printed(text: str) -> None:
        query = {"task": task["id"], "size": "5"}
        wait_until(lambda: text in api("GET", f"pools/{pool.id}/diary", params=query).json["text"])

    printed("here")
    log = api("GET", f"pools/{pool.id}/log", params={"rank": str(task["rank"])})
    assert "hello out there" in log.json["text"]
    short = api("GET", f"pools/{pool.id}/log", params={"rank": str(task["rank"]), "size": "4"})
    assert len(short.json["text"]) == 4
    missing = api("GET", f"pools/{pool.id}/log", params={"rank": "7"})
    assert missing.code == 404
    assert "Its ranks are: 0, 1" in missing.words
    assert api("GET", f"pools/{pool.id}/diary", params={"task": "t999"}).code == 409
    nb.check("talk.cancel()")


def test_engines_are_restarted_on_their_ranks(api, nb):
    pool = pool_of(nb)
    before = {engine.rank: engine.pid for engine in pool.engines}

    assert api("POST", f"pools/{pool.id}/restart", {"ranks": [1]}).code == 200

    def is_new(shown: dict) -> bool:
        engine = shown["engines"][f"{pool.id}/1"]
        return engine["state"] == "idle" and engine["pid"] != before[1]

    shown = api.wait_until(is_new)
    assert shown
    assert api.sections()["engines"][f"{pool.id}/0"]["pid"] == before[0]
    refused = api("POST", f"pools/{pool.id}/restart", {"ranks": [7]})
    assert refused.code == 409


def test_a_pool_is_stopped_without_a_word_in_the_notebook(api, stream, fresh):
    pool = pool_of(fresh)
    client = stream()
    client.read_until(lambda _: pool.id in client.sections.get("pools", {}))

    reply = api("POST", f"pools/{pool.id}/stop")

    assert (reply.json["ok"], reply.json["by"]) == (True, "owner")
    # The second one where its end takes longer than a request may.
    assert reply.json["words"] in (
        "The pool 'mine' was stopped.",
        "The pool 'mine' is being stopped.",
    )
    client.read_until(lambda _: pool.id not in client.sections["pools"])
    assert not any(is_alive(engine.pid) for engine in pool.engines)
    assert api("POST", f"pools/{pool.id}/stop").code == 404
    fresh.check(UNTIL_TOLD)
    cell = fresh.check("print(mgpu.current_pool())")
    assert cell.stdout.strip() == "None"
    assert "Traceback" not in cell.text


def test_a_stopped_kernel_is_told_as_silent_and_reached_by_signal(api, fresh, nb):
    pool, other = pool_of(fresh), pool_of(nb)
    fresh.check("import time\nslept = mgpu.parfeval(time.sleep, 600, name='slept')")
    api.wait_until(lambda shown: running_task(shown, pool.id, "slept"))
    os.kill(fresh.pid, signal.SIGSTOP)
    try:
        shown = api.wait_until(
            lambda shown: shown if shown["pools"][pool.id]["state"] == "silent" else None
        )
        assert shown["pools"][other.id]["state"] == "ready"
        assert shown["engines"][f"{pool.id}/0"]["state"] == "unknown"

        body = {"task": "t999"}  # what it is asked for now it does when it goes on
        refused = api("POST", f"pools/{pool.id}/cancel", body)
        assert refused.code == 504
        assert "has not answered for 1 s" in refused.words
        one = api("POST", f"pools/{pool.id}/interrupt", {"task": "t1"})
        assert one.code == 504
        done = api("POST", f"pools/{pool.id}/interrupt").json
        assert done["by"] == "signal"
        assert "interrupted by signal" in done["words"]
    finally:
        os.kill(fresh.pid, signal.SIGCONT)
    assert fresh.run("slept.result(60)").ename == "KeyboardInterrupt"
    api.wait_until(lambda shown: shown["pools"][pool.id]["state"] not in ("silent", "busy"))


def test_the_engines_of_a_stopped_kernel_are_ended_and_stay_so(api, fresh):
    pool = pool_of(fresh)
    os.kill(fresh.pid, signal.SIGSTOP)
    try:
        done = api("POST", f"pools/{pool.id}/stop").json
        assert done["by"] == "signal"
        assert not any(control.signals.living_ranks(pool))
    finally:
        os.kill(fresh.pid, signal.SIGCONT)

    wait_until(lambda: not pool.record_path.exists(), 60, "the end of the pool")
    fresh.check(UNTIL_TOLD)
    assert fresh.check("print(mgpu.current_pool())").stdout.strip() == "None"


def test_a_hung_owner_holds_up_nobody_else(api, fresh, nb, wait, monkeypatch):
    pool, other = pool_of(fresh), pool_of(nb)
    # Those that ask it hang until it goes on, which is after the other pool's answer.
    monkeypatch.setattr(actions, "SILENT_S", 60.0)
    os.kill(fresh.pid, signal.SIGSTOP)
    try:

        async def ask() -> tuple[Reply, list[Reply]]:
            hung = [
                asyncio.ensure_future(api.later("POST", f"pools/{pool.id}/interrupt"))
                for _ in range(20)
            ]
            quick = await api.later("POST", f"pools/{other.id}/interrupt")
            os.kill(fresh.pid, signal.SIGCONT)
            return quick, await asyncio.gather(*hung)

        quick, hung = wait(ask())
    finally:
        os.kill(fresh.pid, signal.SIGCONT)

    assert quick.code == 200
    assert {reply.code for reply in hung} == {200, 503}


def test_a_killed_kernels_pool_goes_by_itself(api, fresh):
    pool = pool_of(fresh)
    api.wait_until(lambda shown: pool.id in shown["pools"])

    fresh.kill()

    api.wait_until(lambda shown: pool.id not in shown["pools"])
    assert not pool.record_path.exists()
    wait_until(lambda: not any(is_alive(engine.pid) for engine in pool.engines))


def test_what_a_dead_kernel_has_left_is_shown_and_cleaned_up(api, fresh):
    pool = pool_of(fresh)
    for pid in guards_of(pool):
        os.kill(pid, signal.SIGKILL)
    fresh.kill()

    shown = api.wait_until(
        lambda shown: shown if shown["pools"][pool.id]["state"] == "orphaned" else None
    )

    assert shown["engines"][f"{pool.id}/1"]["pid"] == pool.engines[1].pid
    assert api("GET", f"pools/{pool.id}/log").code == 200
    refused = api("POST", f"pools/{pool.id}/restart")
    assert refused.code == 504
    assert "can only be stopped" in refused.words
    done = api("POST", f"pools/{pool.id}/stop").json
    assert done["by"] == "signal"
    assert "ranks 0, 1" in done["words"]
    assert not any(is_alive(engine.pid) for engine in pool.engines)
    assert not pool.folder.exists()
    assert not pool.record_path.exists()
    api.wait_until(lambda shown: pool.id not in shown["pools"])


@pytest.mark.parametrize(
    "told",
    [None, {"status": {}}, {"status": {"engines": [{}]}, "tasks": 5, "ended": [], "hidden": 0}],
)
def test_a_pool_of_another_version_is_told_and_hides_no_other(api, nb, wait, told):
    """Its owner speaks the same protocol, in other words."""
    good = pool_of(nb)
    record = json.loads(good.record_path.read_text())
    path = Path(tempfile.mkdtemp(prefix="mgpu-")) / "owner.sock"
    operations = {"stop": lambda: other.unlink()} | ({"look": lambda: told} if told else {})
    server = wait(endpoint.serve(path, operations))
    other = records.folder() / "other.json"
    records.write(other, {**record, "name": "other", "socket": str(path)})
    try:

        def are_known(shown: dict) -> dict | None:  # each answers in its own time
            states = [shown["pools"][pool_id]["state"] for pool_id in ("other", good.id)]
            return shown if states == ["unknown", "ready"] else None

        shown = api.wait_until(are_known)

        assert "another version" in shown["pools"]["other"]["state_words"]
        looks = wait(asyncio.to_thread(lambda: control.look_at(control.find_pools())))
        assert {look.pool.id: look.state for look in looks}["other"] == "unknown"
        assert api("POST", "pools/other/interrupt").code == 409
        assert api("POST", "pools/other/stop").json["by"] == "owner"
        api.wait_until(lambda shown: "other" not in shown["pools"])
    finally:
        server.close()
        other.unlink(missing_ok=True)
        shutil.rmtree(path.parent)


def test_records_that_are_none_and_of_others_are_let_alone(api, nb):
    good = json.loads(pool_of(nb).record_path.read_text())
    folder = records.folder()
    texts = {
        "garbage": "{",
        "list": "[1, 2]",
        "empty": "",
        "deep": "[" * 100_000,
        "half": json.dumps({**good, "engines": [{"rank": "x"}]}),
        "words": json.dumps({**good, "pid": "many"}),
    }
    for name, text in texts.items():
        (folder / f"{name}.json").write_text(text)
    os.mkfifo(folder / "fifo.json")
    (folder / "link.json").symlink_to(pool_of(nb).record_path)
    (folder / "folder.json").mkdir()
    foreign = folder / "foreign.json"
    names = [*texts, "fifo", "link", "folder"]
    if os.getuid() == 0:  # who else can make a file of somebody else
        records.write(foreign, good)
        os.chown(foreign, 65534, 65534)
        names.append("foreign")
    try:
        shown = api.wait_until(lambda shown: pool_of(nb).id in shown["pools"] and shown["pools"])

        assert not set(names) & set(shown)
        if os.getuid() == 0:
            assert api("POST", "pools/foreign/stop").code == 404
            assert foreign.exists()
    finally:
        for name in [*texts, "fifo", "link", "foreign"]:
            (folder / f"{name}.json").unlink(missing_ok=True)
        (folder / "folder.json").rmdir()


def test_a_signal_goes_to_no_later_process_of_the_same_number(nb):
    pool = pool_of(nb)
    other = control.FoundEngine(0, os.getpid(), "1", "CPU")
    mistaken = control.FoundPool(
        **{name: getattr(pool, name) for name in pool.__dataclass_fields__ if name != "engines"},
        engines=(other,),
    )

    assert control.signals.end_engines(mistaken) == []
    assert control.signals.interrupt_engines(mistaken) == []


def test_the_notebook_of_a_kernel_of_this_server_is_named(
    api, jp_fetch, jp_create_notebook, jp_runtime_dir, wait
):
    jp_create_notebook("train.ipynb")
    body = {"path": "train.ipynb", "name": "", "type": "notebook", "kernel": {"name": "python3"}}
    reply = wait(jp_fetch("api", "sessions", method="POST", body=json.dumps(body)))
    kernel_id = json.loads(reply.body)["kernel"]["id"]
    file = jp_runtime_dir / f"kernel-{kernel_id}.json"
    client = BlockingKernelClient(connection_file=str(file))
    client.load_connection_file()
    client.start_channels()
    try:
        client.execute(  # it waits in the socket until the kernel is there
            "%load_ext jupyter_mgpu\n%parpool 1 --name here"
        )

        def is_ready(shown: dict) -> dict | None:
            rows = [row for row in shown["pools"].values() if row["name"] == "here"]
            return rows[0] if rows and rows[0]["state"] == "ready" else None

        row = api.wait_until(is_ready)

        assert row["here"] is True
        assert row["kernel_id"] == kernel_id
        assert row["notebook_path"] == "train.ipynb"
        assert row["code"] == "%parpool 1 --name here"
    finally:
        client.stop_channels()
        wait(jp_fetch("api", "kernels", kernel_id, method="DELETE"))
