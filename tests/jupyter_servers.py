"""A real Jupyter server with our extension, in the test's own process: one per test.

A test module takes the fixtures by `from jupyter_servers import *`, so that pytest-jupyter's own
automatic ones run there only. A test is a plain function; `api` and `stream` run the server's loop
while they wait.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_jupyter import jupyter_server
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

ADDRESS = "jupyter-mgpu"
TIMEOUT_S = 60.0
OURS = ["api", "jp_base_url", "jp_server_config", "login", "stream", "wait"]
OURS += ["jp_data_dir", "jp_nbconvert_templates", "jp_runtime_dir"]
FIXTURES = [
    name
    for name in vars(jupyter_server)
    if name.startswith(("jp_", "echo_", "http_server", "io_loop")) and name not in OURS
]
globals().update({name: vars(jupyter_server)[name] for name in FIXTURES})

__all__ = [*FIXTURES, *OURS]


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return {
        "ServerApp": {
            "jpserver_extensions": {"jupyter_mgpu": True, "jupyter_server_terminals": False},
            "allow_unauthenticated_access": False,
        }
    }


@pytest.fixture
def jp_base_url() -> str:
    return "/a%40b%20c/"


@pytest.fixture
def jp_runtime_dir() -> Path:
    """Where the pools of the other fixtures have their records."""
    return Path(os.environ["JUPYTER_RUNTIME_DIR"])


@pytest.fixture
def jp_data_dir() -> Path:
    return Path(os.environ["JUPYTER_DATA_DIR"])


@pytest.fixture
def jp_nbconvert_templates() -> None:
    """None are needed."""


class Reply:
    """What a request gave."""

    def __init__(self, code: int, body: bytes) -> None:
        self.code = code
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def words(self) -> str:
        """What a refusal says."""
        return str(self.json["message"])

    def __repr__(self) -> str:
        return f"{self.code} {self.body[:500]!r}"


@pytest.fixture
def wait(jp_asyncio_loop: Any) -> Callable[..., Any]:
    """Run the server until a coroutine has ended; it must not take long."""

    def run(coroutine: Any, timeout: float = TIMEOUT_S) -> Any:
        return jp_asyncio_loop.run_until_complete(asyncio.wait_for(coroutine, timeout))

    return run


class Api:
    """Requests to the server: `api("GET", "snapshot")`, `api("POST", "pools/x/stop", {})`."""

    def __init__(self, fetch: Any, wait: Any) -> None:
        self._fetch = fetch
        self._wait = wait

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        return self._wait(self.later(method, path, body, **options))

    async def later(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        """Make a request beside others."""
        if method == "POST":
            options["body"] = body if isinstance(body, bytes) else json.dumps(body or {})
        # An error status is a reply; when nothing answers at all (599) it raises.
        options |= {"method": method, "raise_error": False, "request_timeout": TIMEOUT_S}
        reply = await self._fetch(ADDRESS, *path.split("/"), **options)
        return Reply(reply.code, reply.body)

    def sections(self) -> dict[str, Any]:
        """What the server shows now."""
        reply = self("GET", "snapshot")
        assert reply.code == 200, reply
        return reply.json["sections"]

    def wait_until(self, condition: Callable[[dict[str, Any]], Any], timeout: float = 60) -> Any:
        """Look until what the server shows fulfils a condition; return what that returned."""

        async def look() -> Any:
            shown: dict[str, Any] = {}
            try:
                async with asyncio.timeout(timeout):
                    while True:
                        reply = await self.later("GET", "snapshot")
                        # A row may not be shown yet, and nothing when no state could be made.
                        with contextlib.suppress(KeyError):
                            shown = reply.json["sections"]
                            if found := condition(shown):
                                return found
                        await asyncio.sleep(0.1)
            except TimeoutError:
                raise TimeoutError(f"it did not come; shown is {shown}") from None

        return self._wait(look(), timeout + TIMEOUT_S)


@pytest.fixture
def api(jp_fetch: Any, wait: Any) -> Api:
    return Api(jp_fetch, wait)


class Stream:
    """A client of the WebSocket that keeps what it is told, as the sidebar does."""

    def __init__(self, connection: WebSocketClientConnection, wait: Any) -> None:
        self.connection = connection
        self.sections: dict[str, dict[str, dict[str, Any]]] = {}
        self.messages: list[dict[str, Any]] = []
        self._wait = wait

    def read(self) -> dict[str, Any] | None:
        """Return the next message, None when the server has closed."""
        return self._wait(self.later())

    async def later(self) -> dict[str, Any] | None:
        """Read beside others."""
        text = await self.connection.read_message()
        if text is None:
            return None
        message: dict[str, Any] = json.loads(text)
        self.messages.append(message)
        self._apply(message)
        return message

    def _apply(self, message: dict[str, Any]) -> None:
        if message["type"] == "snapshot":
            self.sections = message["sections"]
        for name, rows in message.get("changed", {}).items():
            for row_id, fields in rows.items():
                self.sections.setdefault(name, {}).setdefault(row_id, {}).update(fields)
        for name, ids in message.get("gone", {}).items():
            for row_id in ids:
                self.sections[name].pop(row_id, None)

    def read_until(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Read on to the first message that fulfils a condition."""
        while (message := self.read()) is not None:
            if condition(message):
                return message
        raise AssertionError(f"closed after {self.messages[-3:]}")

    def send(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self._wait(self.connection.write_message(text))

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def stream(
    http_server_client: Any,  # noqa: ARG001 - only with it the server listens
    jp_auth_header: Any,
    jp_http_port: int,
    jp_base_url: str,
    wait: Any,
) -> Iterator[Callable[..., Stream]]:
    """Open the stream: `stream()`, with other headers `stream({"Origin": ...})`."""
    opened: list[Stream] = []

    async def open_socket(request: HTTPRequest) -> WebSocketClientConnection:
        return await websocket_connect(request)  # asks for the running loop at once

    def connect(headers: dict[str, str] | None = None) -> Stream:
        url = f"ws://127.0.0.1:{jp_http_port}{jp_base_url}{ADDRESS}/stream"
        request = HTTPRequest(url, headers=jp_auth_header if headers is None else headers)
        opened.append(Stream(wait(open_socket(request)), wait))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def login(jp_fetch: Any, jp_serverapp: Any, wait: Any) -> Callable[[], dict[str, str]]:
    """Log in as a browser does; returns its headers: cookies, and no token."""

    def cookies(reply: Any) -> dict[str, str]:
        pairs = [line.partition(";")[0] for line in reply.headers.get_list("Set-Cookie")]
        return dict(pair.split("=", 1) for pair in pairs)

    def log_in() -> dict[str, str]:
        nobody = {"Authorization": ""}
        page = wait(jp_fetch("login", headers=dict(nobody)))
        found = cookies(page)
        text = "; ".join(f"{name}={value}" for name, value in found.items())
        token = jp_serverapp.identity_provider.token
        reply = wait(
            jp_fetch(
                "login",
                method="POST",
                headers={
                    **nobody,
                    "Cookie": text,
                    "Content-Type": "application/x-www-form-urlencoded",
                },
                body=f"_xsrf={found['_xsrf']}&password={token}",
                follow_redirects=False,
                raise_error=False,
            )
        )
        assert reply.code == 302, reply.body
        found |= cookies(reply)
        return {
            **nobody,
            "Cookie": "; ".join(f"{name}={value}" for name, value in found.items()),
            "X-XSRFToken": found["_xsrf"],
        }

    return log_in
