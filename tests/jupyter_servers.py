"""A real Jupyter server with our extension, in the test's own process: one per test.

A test module takes the fixtures by `from jupyter_servers import *`, so that pytest-jupyter's own
automatic ones run there only. A test is a plain function that has `ask` wait for its coroutines.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pytest_jupyter import jupyter_server

ADDRESS = "jupyter-mgpu"
FIXTURES = [
    name
    for name in vars(jupyter_server)
    if name.startswith(("jp_", "echo_", "http_server", "io_loop")) and name != "jp_server_config"
]
globals().update({name: vars(jupyter_server)[name] for name in FIXTURES})


__all__ = [*FIXTURES, "api", "jp_server_config"]


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return {
        "ServerApp": {
            "jpserver_extensions": {"jupyter_mgpu": True},
            "allow_unauthenticated_access": False,
        }
    }


class Reply:
    """What a request gave."""

    def __init__(self, code: int, body: bytes) -> None:
        self.code = code
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"{self.code} {self.body[:500]!r}"


@pytest.fixture
def api(jp_fetch: Any, jp_asyncio_loop: Any) -> Callable[..., Reply]:
    """Ask the server: `api("GET", "snapshot")`, `api("POST", "pools/x/stop", {})`."""

    async def request(method: str, path: str, body: Any = None, **options: Any) -> Reply:
        if method == "POST":
            options["body"] = body if isinstance(body, bytes) else json.dumps(body or {})
        # An error status is a reply; when nothing answers at all (599) it raises.
        options["raise_error"] = False
        reply = await jp_fetch(ADDRESS, *path.split("/"), method=method, **options)
        return Reply(reply.code, reply.body)

    def ask(method: str, path: str, body: Any = None, **options: Any) -> Reply:
        return jp_asyncio_loop.run_until_complete(request(method, path, body, **options))

    ask.later = request
    return ask
