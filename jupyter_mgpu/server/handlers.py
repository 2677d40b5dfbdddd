"""The HTTP routes: JSON in, JSON out, every refusal in words.

Looking needs the permission `read`, acting `execute`, both on the resource `jupyter_mgpu`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib.metadata import version
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado.web import authenticated

from jupyter_mgpu import control
from jupyter_mgpu.control import Done, FoundPool, NoSuchPoolError
from jupyter_mgpu.errors import MgpuError, OwnerSilentError
from jupyter_mgpu.monitor import LONGEST_S, SHORTEST_S
from jupyter_mgpu.server import requests
from jupyter_mgpu.server.calls import Calls
from jupyter_mgpu.server.document import dump
from jupyter_mgpu.server.gpu_rows import host_identity
from jupyter_mgpu.server.hub import Hub
from jupyter_mgpu.server.requests import RefusedError

API_VERSION = 1
VERSION = version("jupyter_mgpu")
RESOURCE = "jupyter_mgpu"
POLL_S = 5
MOST_MINUTES = 10
SETTING = "jupyter_mgpu_parts"


class Parts:
    """What the handlers share: the hub, and the calls to pools."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.calls = Calls()


def parts_of(handler: JupyterHandler) -> Parts:
    """Return the parts of the server that a handler belongs to."""
    return handler.settings[SETTING]  # type: ignore[no-any-return]


async def may(handler: JupyterHandler, action: str) -> bool:
    """Tell whether the user of a request may `read` or `execute`."""
    user = handler.current_user
    return bool(
        await ensure_async(handler.authorizer.is_authorized(handler, user, action, RESOURCE))
    )


async def hello(handler: JupyterHandler) -> dict[str, Any]:
    """Say who answers, and what the user of a request may do."""
    limits = {"default": parts_of(handler).hub.interval_s, "min": SHORTEST_S, "max": LONGEST_S}
    return {
        "api_version": API_VERSION,
        "server_version": VERSION,
        "capabilities": {"look": True, "act": await may(handler, "execute")},
        "interval_s": limits,
        "poll_s": POLL_S,
        "host": host_identity(),
    }


Method = Callable[..., Awaitable[dict[str, Any]]]


def answered(method: Method) -> Callable[..., Awaitable[None]]:
    """Write what a handler's method returns, and what it raises, as JSON."""

    @wraps(method)
    async def write(self: "MgpuHandler", *args: str) -> None:
        try:
            status, reply = 200, await method(self, *args)
        except RefusedError as refusal:
            status, reply = refusal.status, _refused(refusal.words)
        except NoSuchPoolError as error:
            status, reply = 404, _refused(str(error))
        except OwnerSilentError as error:
            status, reply = 504, _refused(str(error))
        except MgpuError as error:
            status, reply = 409, _refused(str(error))
        except TimeoutError:
            status, reply = 503, _refused("Nothing could be read within seconds. Try again.")
        self.set_status(status)
        self.finish(dump(reply))

    return write


def _refused(words: str) -> dict[str, Any]:
    return {"message": words, "reason": None}


class MgpuHandler(APIHandler):
    """A route of ours."""

    auth_resource = RESOURCE
    # Clients ask by themselves: that must not keep an idle server from being culled.
    _track_activity = False

    async def call(self, pool_id: str, function: Callable[[FoundPool], Any]) -> Any:
        """Call something about one of this user's pools, in a thread.

        Raises:
            NoSuchPoolError: If there is no such pool.
        """
        if len(pool_id) > requests.MOST_ID:
            raise RefusedError(400, f"A pool's id has at most {requests.MOST_ID} characters.")
        calls = parts_of(self).calls
        return await calls.run(pool_id, lambda: function(control.find_pool(pool_id)))

    def query(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number of the query."""
        value = self.get_query_argument(name, None)
        return default if value is None else requests.number(name, value, least, most)


class HelloHandler(MgpuHandler):
    """Says who answers, and what this user may do."""

    @authenticated
    @authorized("read", RESOURCE)
    @answered
    async def get(self) -> dict[str, Any]:
        """Say hello."""
        return await hello(self)


class SnapshotHandler(MgpuHandler):
    """The present state, for who has no stream."""

    @authenticated
    @authorized("read", RESOURCE)
    @answered
    async def get(self) -> dict[str, Any]:
        """Return GPUs, pools, engines and tasks."""
        return await parts_of(self).hub.snapshot()


class HistoryHandler(MgpuHandler):
    """The last minutes of every GPU."""

    @authenticated
    @authorized("read", RESOURCE)
    @answered
    async def get(self) -> dict[str, Any]:
        """Return the values that were read while somebody watched."""
        hub = parts_of(self).hub
        minutes = self.query("minutes", MOST_MINUTES, 1, MOST_MINUTES)
        return await hub.history(round(minutes * 60 / hub.pace_s))


class LogHandler(MgpuHandler):
    """The end of a rank's log."""

    @authenticated
    @authorized("read", RESOURCE)
    @answered
    async def get(self, pool_id: str) -> dict[str, Any]:
        """Return the text."""
        rank = self.query("rank", 0, 0, requests.MOST_RANKS)
        size = self.query("size", 65536, 1, requests.MOST_LOG_BYTES)
        return {"text": await self.call(pool_id, lambda pool: _log(pool, rank, size))}


def _log(pool: FoundPool, rank: int, size: int) -> str:
    try:
        return control.read_log(pool, rank, size)
    except MgpuError as error:
        raise RefusedError(404, str(error)) from error


class DiaryHandler(MgpuHandler):
    """What a task has printed."""

    @authenticated
    @authorized("read", RESOURCE)
    @answered
    async def get(self, pool_id: str) -> dict[str, Any]:
        """Return the text."""
        task = requests.text("task", self.get_query_argument("task", ""))
        size = self.query("size", 65536, 1, requests.MOST_LOG_BYTES)
        return {"text": await self.call(pool_id, lambda pool: control.read_diary(pool, task, size))}


@dataclass(frozen=True, slots=True)
class Action:
    """What can be done to a pool.

    Attributes:
        act: Does it; gets the pool and the request's fields.
        fields: What checks each field that a request may have.
        required: The fields that it must have.
    """

    act: Callable[..., Done]
    fields: Mapping[str, Callable[[str, Any], Any]] = field(default_factory=dict)
    required: tuple[str, ...] = ()


ACTIONS = {
    "interrupt": Action(control.interrupt, {"task": requests.text, "force": requests.flag}),
    "restart": Action(control.restart, {"ranks": requests.ranks}),
    "stop": Action(partial(control.stop, wait_s=3.0)),
    "cancel": Action(control.cancel, {"task": requests.text}, ("task",)),
    "request-stop": Action(
        control.request_stop, {"task": requests.text, "after": requests.after}, ("task",)
    ),
}


class ActionHandler(MgpuHandler):
    """Does something to a pool."""

    _track_activity = True

    def initialize(self, action: Action) -> None:
        """Take what it does."""
        self._action = action

    @authenticated
    @authorized("execute", RESOURCE)
    @answered
    async def post(self, pool_id: str) -> dict[str, Any]:
        """Do it."""
        action = self._action
        given = requests.read_body(self.request.body, action.fields)
        for name in action.required:
            if name not in given:
                raise RefusedError(400, f"The field {name!r} is missing.")
        done: Done = await self.call(pool_id, lambda pool: action.act(pool, **given))
        self.log.info("jupyter_mgpu: %s", done.words)
        parts_of(self).hub.hurry()
        return {"ok": True, "by": done.by, "words": done.words}


class UnknownHandler(MgpuHandler):
    """Everything else below our address."""

    @authenticated
    @authorized("read", RESOURCE)
    @answered
    async def get(self) -> dict[str, Any]:
        """Refuse."""
        raise RefusedError(
            404,
            f"jupyter_mgpu {VERSION} has no such route. Is the page older than the server? "
            "Reload it.",
        )

    post = put = patch = delete = get


ROUTES: list[tuple[Any, ...]] = [
    ("hello", HelloHandler),
    ("snapshot", SnapshotHandler),
    ("history", HistoryHandler),
    ("pools/([^/]+)/log", LogHandler),
    ("pools/([^/]+)/diary", DiaryHandler),
    *(
        (f"pools/([^/]+)/{name}", ActionHandler, {"action": action})
        for name, action in ACTIONS.items()
    ),
]
