"""Every route: who may ask, what is refused, in which words."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from jupyter_server.auth import Authorizer
from jupyter_servers import *  # noqa: F403 - fixtures
from tornado.httpclient import HTTPClientError

from jupyter_mgpu.monitor.sampler import sampler
from jupyter_mgpu.server import handlers
from jupyter_mgpu.server.calls import MOST_PER_POOL
from notebooks import wait_until

pytestmark = [pytest.mark.oldest, pytest.mark.usefixtures("own_runtime_folder")]

GETS = ["hello", "snapshot", "history", "pools/x/log", "pools/x/diary", "nonsense", "pools/x"]
POSTS = [f"pools/x/{name}" for name in ("interrupt", "restart", "stop", "cancel", "request-stop")]
ROUTES = [("GET", path) for path in GETS] + [("POST", path) for path in [*POSTS, "nonsense"]]


class ReadOnly(Authorizer):
    """Lets everybody look, and nobody act."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:  # noqa: ARG002 - jupyter_server calls it so
        return action == "read"


class Nothing(Authorizer):
    """Lets nobody do anything."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:  # noqa: ARG002 - as above
        return resource != "jupyter_mgpu"


OPEN = {
    "ServerApp": {
        "jpserver_extensions": {"jupyter_mgpu": True, "jupyter_server_terminals": False},
        "allow_unauthenticated_access": True,  # as a server is without any configuration
    }
}
CLOSED = {"ServerApp": {**OPEN["ServerApp"], "allow_unauthenticated_access": False}}


@pytest.mark.parametrize("jp_server_config", [OPEN, CLOSED], ids=["default", "closed"])
def test_no_route_answers_without_the_token(api, stream):
    for header in ({"Authorization": ""}, {"Authorization": "token wrong"}):
        for method, path in ROUTES:
            reply = api(method, path, headers=dict(header))
            assert reply.code == 403, (path, reply)
            assert "sections" not in reply.json
        with pytest.raises(HTTPClientError) as caught:
            stream(dict(header))
        assert caught.value.code == 403


@pytest.mark.parametrize(
    ("jp_server_config", "interval_s"),
    [
        ({**CLOSED, "MgpuExtension": {"interval_s": 2.0}}, 2.0),
        ({**CLOSED, "MgpuExtension": {"interval_s": 0.001}}, 0.5),
    ],
    ids=["good", "too short"],
)
def test_the_interval_is_configured_within_its_limits(api, interval_s):
    assert api("GET", "hello").json["interval_s"]["default"] == interval_s
    assert api.sections()["telemetry"]["gpus"]["interval_s"] == interval_s


@pytest.mark.parametrize("jp_server_config", [OPEN], ids=["default"])
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "HEAD"])
def test_no_other_method_answers_without_the_token(api, method):
    options = {"allow_nonstandard_methods": True, "headers": {"Authorization": ""}}
    for _, path in ROUTES:
        reply = api(method, path, **{**options, "headers": dict(options["headers"])})
        assert reply.code in (403, 405), (path, reply)


def test_every_handler_is_among_the_routes_that_are_tested():
    tested = {path.replace("pools/x", "pools/([^/]+)") for _, path in ROUTES}

    assert {pattern for pattern, *_ in handlers.ROUTES} <= tested


def test_every_route_answers_with_the_token(api):
    codes = {path: api(method, path).code for method, path in ROUTES}

    assert [codes[path] for path in ("hello", "snapshot", "history")] == [200, 200, 200]
    assert {codes[path] for path in POSTS} == {404, 400}  # there is no such pool, no task
    assert codes["nonsense"] == codes["pools/x"] == 404


def test_hello_says_who_answers_and_what_is_possible(api):
    told = api("GET", "hello").json

    assert told["api_version"] == 1
    assert told["capabilities"] == {"look": True, "act": True}
    assert told["interval_s"] == {"default": 1.0, "min": 0.5, "max": 60.0}
    assert told["host"]["hostname"]


def test_a_read_only_user_looks_and_cannot_act(api, stream, jp_serverapp):
    jp_serverapp.web_app.settings["authorizer"] = ReadOnly(parent=jp_serverapp)

    assert api("GET", "hello").json["capabilities"] == {"look": True, "act": False}
    assert api("GET", "snapshot").code == 200
    assert api("GET", "pools/x/log").code == 404
    for path in POSTS:
        assert api("POST", path, {"task": "t1"}).code == 403
    assert stream().read()["capabilities"]["act"] is False


def test_a_user_without_permission_sees_nothing(api, stream, jp_serverapp):
    jp_serverapp.web_app.settings["authorizer"] = Nothing(parent=jp_serverapp)

    for method, path in ROUTES:
        assert api(method, path).code == 403, path
    with pytest.raises(HTTPClientError) as caught:
        stream()
    assert caught.value.code == 403


def test_a_page_of_another_origin_is_refused(api, stream, login):
    browser = login()
    foreign = {**browser, "Origin": "https://elsewhere.example"}

    assert api("GET", "snapshot", headers=dict(browser)).code == 200
    assert api("GET", "snapshot", headers=dict(foreign)).code == 404
    assert api("POST", "pools/x/stop", headers=dict(foreign)).code == 404
    with pytest.raises(HTTPClientError) as caught:
        stream(dict(foreign))
    assert caught.value.code == 403
    assert stream(dict(browser)).read()["type"] == "hello"


def test_a_browser_acts_with_its_xsrf_token_only(api, login):
    browser = login()
    without = {name: value for name, value in browser.items() if name != "X-XSRFToken"}

    assert api("POST", "pools/x/stop", headers=without).code == 403
    assert api("POST", "pools/x/stop", headers=browser).code == 404


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("pools/x/stop", b"{", "must be a JSON object"),
        ("pools/x/stop", b"[]", "must be a JSON object"),
        ("pools/x/stop", b"\xff\xfe\x00", "must be a JSON object"),
        ("pools/x/stop", b"[" * 60_000, "must be a JSON object"),
        ("pools/x/stop", {"pid": 1}, "'pid' is unknown. It takes: no fields."),
        ("pools/x/interrupt", {"path": "/etc/passwd"}, "It takes: force, task."),
        ("pools/x/interrupt", {"force": "yes"}, "force must be true or false"),
        ("pools/x/interrupt", {"task": 5}, "1 to 200 characters"),
        ("pools/x/cancel", {"task": ""}, "1 to 200 characters"),
        ("pools/x/cancel", {"task": "x" * 201}, "1 to 200 characters"),
        ("pools/x/cancel", {}, "'task' is missing"),
        ("pools/x/request-stop", {"task": "t1", "after": "never"}, '"step" or "epoch"'),
        ("pools/x/restart", {"ranks": 1}, "a list of ranks"),
        ("pools/x/restart", {"ranks": [-1]}, "a list of ranks"),
        ("pools/x/restart", {"ranks": [True]}, "a list of ranks"),
        ("pools/x/restart", {"ranks": ["0"]}, "a list of ranks"),
        ("pools/x/restart", {"ranks": [0] * 5000}, "a list of ranks"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_in_words(api, path, body, words):
    reply = api("POST", path, body)

    assert reply.code == 400
    assert words in reply.words


def test_a_huge_body_is_refused(api):
    reply = api("POST", "pools/x/cancel", {"task": "x" * 10**6})

    assert reply.code == 413
    assert "at most 65536 are taken" in reply.words


@pytest.mark.parametrize("pool_id", ["..", "%2e%2e", "a b", "x" * 5000, "-", "$(id)", "ü", "%00"])
def test_an_id_that_is_none_is_refused(api, pool_id):
    for path in (f"pools/{pool_id}/stop", f"pools/{pool_id}/cancel"):
        reply = api("POST", path, {"task": "t1"} if "cancel" in path else {})
        assert reply.code in (400, 404), reply
        assert reply.words


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("pools/x/log", {"rank": "first"}),
        ("pools/x/log", {"rank": "-1"}),
        ("pools/x/log", {"rank": "9" * 5000}),
        ("pools/x/log", {"size": "0"}),
        ("pools/x/log", {"size": str(2**40)}),
        ("pools/x/diary", {"size": "1e3", "task": "t1"}),
        ("pools/x/diary", {}),
        ("history", {"minutes": "nan"}),
        ("history", {"minutes": "11"}),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_in_words(api, path, params):
    reply = api("GET", path, params=params)

    assert reply.code == 400
    assert "must be" in reply.words


def test_many_requests_at_once_are_all_answered(api, wait):
    async def ask() -> list[Any]:
        asked = [api.later("GET", "snapshot") for _ in range(40)]
        asked += [api.later("POST", "pools/x/stop") for _ in range(40)]
        return await asyncio.gather(*asked)

    replies = wait(ask())

    assert {reply.code for reply in replies[:40]} == {200}
    assert {reply.code for reply in replies[40:]} <= {404, 503}
    assert all(reply.words for reply in replies[40:])
    assert api("POST", "pools/x/stop").code == 404  # nothing is left of them


def test_looking_does_not_keep_an_idle_server(api, stream, jp_serverapp, jp_fetch, wait):
    settings = jp_serverapp.web_app.settings
    before = settings.get("api_last_activity")

    for path in ("hello", "snapshot", "history"):
        assert api("GET", path).code == 200
    followed = stream()
    assert [followed.read()["type"] for _ in range(2)] == ["hello", "snapshot"]

    assert settings.get("api_last_activity") == before
    wait(jp_fetch("api", "kernels"))
    assert settings.get("api_last_activity") != before


def test_nothing_is_sampled_while_nobody_watches(api):
    wait_until(lambda: not sampler.is_running, 60, "the end of what other tests have watched")
    sampler.forget()

    assert api("GET", "hello").code == 200
    assert api("POST", "pools/x/stop").code == 404

    assert not sampler.is_running
    assert sampler._frame is None
    assert api("GET", "snapshot").code == 200
    assert sampler._frame is not None


def test_the_token_is_in_no_line_of_ours(api, jp_serverapp, caplog):
    token = jp_serverapp.identity_provider.token

    assert api("POST", "pools/x/cancel", {"task": "t1"}).code == 404

    lines = [record.getMessage() for record in caplog.records if "mgpu" in record.getMessage()]
    assert token not in json.dumps(lines)


AT_THE_LIMIT = """
import asyncio, threading
from jupyter_mgpu.server.calls import MOST_PER_POOL, Calls
from jupyter_mgpu.server.requests import RefusedError

async def ask():
    calls = Calls()
    usual = threading.stack_size(2**47)  # no process has so many addresses
    for _ in range(MOST_PER_POOL):
        try:
            await calls.run("pool", int)
        except RefusedError as error:
            print(error.status, error.words)
    threading.stack_size(usual)
    print(await calls.run("pool", lambda: "answered"))

asyncio.run(ask())
"""


def test_a_server_that_could_start_no_thread_for_a_time_answers_later() -> None:
    lines = subprocess.check_output([sys.executable, "-c", AT_THE_LIMIT], text=True).splitlines()

    refused, answered = lines[:-1], lines[-1]
    assert answered == "answered"
    assert len(refused) == MOST_PER_POOL
    assert all(line.startswith("503 The server cannot ask the pool: can't") for line in refused)
