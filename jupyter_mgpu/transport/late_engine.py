"""An ipyparallel engine that needs no controller before somebody wants one."""

import json
from typing import Any

import zmq
from ipyparallel.engine.app import IPEngine

from jupyter_mgpu import curve

PORTS = ("registration", "mux", "task", "control", "iopub", "hb_ping", "hb_pong")
NOWHERE = {
    "interface": "tcp://127.0.0.1",
    "location": "localhost",
    "key": "",
    "signature_scheme": "hmac-sha256",
    "pack": "json",
    "unpack": "json",
    "broadcast": [0],
    **dict.fromkeys(PORTS, 0),
}
"""What a controller's connection file holds; here of one that does not exist."""


class LateEngine(IPEngine):
    """Has its kernel at once, with sockets that lead nowhere; connects them when it is asked to.

    ipyparallel's own engine makes its kernel from a controller's answer. A controller takes as long
    to start and as much memory as an engine, and most pools never need one.
    """

    connection_info: dict[str, Any]
    registrar: Any

    def init_engine(self) -> None:  # noqa: D102 - as in the base class
        self.connection_info_env = json.dumps(NOWHERE)
        self._urls: dict[zmq.Socket[bytes], tuple[str, ...]] = {}
        super().init_engine()

    async def register(self) -> None:
        """Make the kernel as if a controller had answered."""
        welcome = {"status": "ok", "id": self.id, "hb_period": 0}
        answer = self.session.serialize(self.session.msg("registration_reply", welcome))
        await self.complete_registration(answer, lambda *_args, **_keys: None, str)

    def start_heartbeat(self, *_args: Any) -> None:
        """Start none: nobody listens yet."""

    def join(self, connection: dict[str, Any]) -> None:
        """Register with a controller as soon as the main thread is free; any thread may call it.

        Args:
            connection: What the controller's connection file for engines holds.
        """
        self.loop.asyncio_loop.call_soon_threadsafe(self._join, connection)

    def _join(self, info: dict[str, Any]) -> None:
        if info == self.connection_info:
            return
        self.connection_info = info
        self.curve_serverkey = (info.get("curve_serverkey") or "").encode()
        if self.curve_serverkey:
            self._ensure_curve_keypair()
        self.session.key = info["key"].encode()
        url = {name: f"{info['interface']}:{info[name]}" for name in PORTS}
        broadcast = info["broadcast"][self.id % len(info["broadcast"])]

        if self.registrar is not None:
            self.registrar.close(linger=0)
        self.registrar = self.context.socket(zmq.DEALER)
        self.registrar.identity = self.bident
        self._secure(self.registrar)
        self.registrar.connect(url["registration"])
        request = {"uuid": self.ident, "id": self.id}
        self.session.send(self.registrar, "registration_request", request)

        self._lead(self.shell_socket, url["mux"], url["task"], f"{info['interface']}:{broadcast}")
        # A socket may be touched by the thread only that serves it.
        control, iopub = self.kernel.control_stream.io_loop, self.kernel.iopub_socket
        control.add_callback(self._lead, self.control_socket, url["control"])
        iopub.schedule(lambda: self._lead(self.iopub_socket, url["iopub"]))
        # The hub counts on an engine from its first heartbeat on.
        super().start_heartbeat(url["hb_ping"], url["hb_pong"], 0, self.bident)

    def _lead(self, socket: "zmq.Socket[bytes]", *urls: str) -> None:
        """Connect a socket to a controller, and to no earlier one."""
        for url in self._urls.pop(socket, ()):
            socket.disconnect(url)  # the new peer has the name of the old one
        self._secure(socket)
        for url in urls:
            socket.connect(url)
        self._urls[socket] = urls

    def _secure(self, socket: "zmq.Socket[bytes]") -> None:
        """Have a socket use the controller's key, if it has one."""
        if self.curve_serverkey:
            keys = (self.curve_serverkey, self.curve_publickey, self.curve_secretkey)
            curve.use_client_keys(socket, b" ".join(keys).decode())
