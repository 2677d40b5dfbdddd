"""What the Jupyter server shows of the other hosts of a pool."""

from typing import Any

import pytest
from gpu_stubs import gpu_uuid
from host_duo import Duo
from jupyter_servers import *  # noqa: F403 - fixtures

from jupyter_mgpu import control

pytestmark = pytest.mark.usefixtures("own_runtime_folder")
FIRST = f"hostb/{gpu_uuid(0)}"


def test_gpus_hosts_and_engines_of_other_hosts_are_shown(api: Any, duo: Duo) -> None:
    (found,) = [pool for pool in control.find_pools() if pool.name == "far"]
    pid = duo.pool.engines[1].pid
    duo.machine.add(f"process 0 pid={pid} memory=512")

    def is_there(shown: dict[str, Any]) -> dict[str, Any] | None:
        has_user = FIRST in shown["gpus"] and shown["gpus"][FIRST]["users"]
        engine = shown["engines"].get(f"{found.id}/1")
        return shown if has_user and engine and engine["cpu"] is not None else None

    shown = api.wait_until(is_there)

    row = shown["gpus"][FIRST]
    assert (row["label"], row["host"], row["index"]) == ("GPU 0 on hostb", "hostb", None)
    assert (row["state"], row["utilization"]) == ("ok", 37)
    (user,) = row["users"]
    assert (user["pool"], user["rank"], user["ours"]) == (found.id, 1, True)
    other = shown["host"]["other/hostb"]
    assert (other["hostname"], other["state"], other["trouble"]) == ("hostb", "ok", None)
    assert 0 < other["memory_used"] < other["memory_total"]
    assert set(shown["host"]) == {"host", "other/hostb"}
    engine = shown["engines"][f"{found.id}/1"]
    assert (engine["host"], engine["device"]) == ("hostb", "GPU 0 (NVIDIA L40S) on hostb")
    assert engine["gpus"] == [FIRST]
    assert shown["engines"][f"{found.id}/0"]["host"] is None


def test_a_host_that_stops_reporting_is_stale_in_the_sidebar(api: Any, duo: Duo) -> None:
    api.wait_until(lambda shown: FIRST in shown["gpus"])
    (sampler,) = duo.samplers()

    sampler.suspend()
    shown = api.wait_until(lambda s: s["gpus"][FIRST]["state"] == "stale" and s)
    sampler.resume()

    assert shown["gpus"][FIRST]["stale_s"] >= 3
    assert "host does not report" in shown["gpus"][FIRST]["state_words"]
    assert shown["host"]["other/hostb"]["state"] == "stale"
    api.wait_until(lambda s: s["gpus"][FIRST]["state"] == "ok")
