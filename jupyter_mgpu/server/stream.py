"""The WebSocket on which a client follows everything."""

import contextlib
import json
from typing import Any

from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.web import HTTPError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_mgpu.errors import IntervalError
from jupyter_mgpu.monitor import clamp_interval
from jupyter_mgpu.server.document import dump
from jupyter_mgpu.server.handlers import RESOURCE, hello, may, parts_of
from jupyter_mgpu.server.viewer import Viewer

MOST_MESSAGE_BYTES = 4096
MOST_ERRORS = 10
POLICY_VIOLATION = 1008
GOING_AWAY = 1001


class StreamHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):  # the origin check first
    """One client: hello, everything, then what changes."""

    auth_resource = RESOURCE
    _track_activity = False
    _viewer: Viewer | None = None
    _num_errors = 0

    def set_default_headers(self) -> None:
        """Set none: those of a page make no sense here."""

    @property
    def max_message_size(self) -> int:
        """What a client may send at once, in bytes: it has little to say."""
        return MOST_MESSAGE_BYTES

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Take the connection, if its user may look."""
        if not await may(self, "read"):
            raise HTTPError(403)
        await super().get(*args, **kwargs)

    async def open(self, *args: Any, **kwargs: Any) -> None:
        """Say hello, then send states."""
        super().open(*args, **kwargs)  # begins the pings
        await self._say({"type": "hello", **await hello(self)})
        hub = parts_of(self).hub
        if self.ws_connection is not None:  # it may have gone again
            self._viewer = Viewer(self.write_message, hub.interval_s, self._close_with_server)
            hub.add(self._viewer)

    async def on_message(self, message: str | bytes) -> None:
        """Take a wish: another interval, a pause, or going on."""
        if self._viewer is None:
            return
        try:
            wish = json.loads(message)
            kind = wish["type"]
            if kind == "interval":
                self._viewer.interval_s, _ = clamp_interval(wish["seconds"])
                await self._say({"type": "interval", "seconds": self._viewer.interval_s})
            elif kind in ("pause", "resume"):
                self._viewer.is_paused = kind == "pause"
            else:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError, IntervalError):
            await self._refuse()
        else:
            parts_of(self).hub.look_now()

    async def _refuse(self) -> None:
        self._num_errors += 1
        if self._num_errors >= MOST_ERRORS:
            self.close(POLICY_VIOLATION, "too many messages that were not understood")
            return
        words = 'Send {"type": "interval", "seconds": 1}, {"type": "pause"} or {"type": "resume"}.'
        await self._say({"type": "error", "message": words})

    async def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(WebSocketClosedError):  # it may go at any moment
            await self.write_message(dump(message))

    def _close_with_server(self) -> None:
        self.close(GOING_AWAY, "the server ends")

    def on_close(self) -> None:
        """Send no more."""
        super().on_close()
        if self._viewer is not None:
            parts_of(self).hub.remove(self._viewer)
