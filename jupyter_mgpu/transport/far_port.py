"""The TCP port of a pool with engines on other hosts: encrypted, and closed to everybody else.

It is one socket for the engines' own connections (`work:`, `control:`) and for their guards'
(`guard:`), so that one port, or one forwarded one, is all that must get through.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from jupyter_mgpu import curve
from jupyter_mgpu.on_engine import lifeline
from jupyter_mgpu.on_engine.owner_address import bracketed
from jupyter_mgpu.transport.far_process import FarProcess
from jupyter_mgpu.transport.placement import Launched
from jupyter_mgpu.transport.routing import receive_all, send_to
from jupyter_mgpu.wire import Frame, Header, decode, encode
from jupyter_mgpu.wire_pieces import Pieces

Listener = Callable[[str, Sequence[Frame]], None]

GUARD = "guard:"
KEEPALIVE_S = 30


class FarPort:
    """Listens on an address that the engines of other hosts reach.

    Args:
        addresses: Of this host, for engines to reach it at. Of several, engines try which ones
            lead here: it listens on all that this host has.
        loop: The owner's event loop.

    Attributes:
        address: The one of them that engines have reached.
        url: Where it listens, with the first of the addresses.
        keys: What a client must know.
        listener: Takes the name of a connection, and the parts of what came on it.
        guard_listener: Takes what the guard of a living engine says, with the engine's name.
    """

    def __init__(self, addresses: Sequence[str], loop: asyncio.AbstractEventLoop) -> None:
        keys = curve.make_keys()
        self.address = addresses[0]
        self.keys = keys.for_clients
        self.listener: Listener = lambda _name, _parts: None
        self.guard_listener: Callable[[str, Header], None] = lambda _engine, _header: None
        self._loop = loop
        self._processes: dict[str, FarProcess] = {}
        self._pieces: dict[str, Pieces] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._doorkeeper = curve.Doorkeeper(self._context, keys, loop)
        self._router = self._context.socket(zmq.ROUTER)
        curve.use_server_keys(self._router, keys)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A guard that lost its connection comes back under its name, before that is known here.
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._router.sndhwm = self._router.rcvhwm = 0
        self._router.linger = 0
        # A host that is gone never closes its connections.
        self._router.tcp_keepalive, self._router.tcp_keepalive_idle = 1, KEEPALIVE_S
        self._router.ipv6 = any(":" in address for address in addresses)
        first = bracketed(addresses[0])
        try:
            self._router.bind(f"tcp://{first if len(addresses) == 1 else '*'}:*")
        except zmq.ZMQError:
            self._doorkeeper.close()
            self._context.destroy()  # else the end of this process would wait for it
            raise
        endpoint = str(self._router.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        self.url = f"tcp://{first}:{endpoint.rpartition(':')[2]}"
        loop.add_reader(self._router.fileno(), self._receive)
        self._ticking = loop.call_later(lifeline.BEAT_S, self._tick)

    def expect(self, name: str, host: str, log: Path) -> FarProcess:
        """Return the process of an engine that is about to be started.

        Args:
            name: The engine's name, such as `0.3`.
            host: Where it runs, for people; empty if that is not known yet.
            log: Where what it prints is written to on this machine.
        """

        def tell(header: Header) -> None:
            self.send_guard(name, encode(header))

        process = self._processes[name] = FarProcess(host, log, tell, self._loop)
        return process

    def launched(self) -> list[Launched]:
        """List what the engines that run were started as; any thread may ask."""
        started = (each.launched for each in list(self._processes.values()) if each.is_alive())
        return list(dict.fromkeys(launched for launched in started if launched is not None))

    def send_guard(self, engine: str, parts: Sequence[Frame]) -> None:
        """Send to the guard of an engine, by the engine's name; harmless when it has gone."""
        self.send(f"{GUARD}{engine}", parts)

    def send(self, connection: str, parts: Sequence[Frame]) -> None:
        """Send to a connection; harmless when it has gone, or the port is closed."""
        if not self._router.closed:  # a last look at the hosts may come later
            send_to(self._router, connection, parts, self._loop, self._receive)

    def _receive(self) -> None:
        receive_all(self._router, self._take, self._loop, self._receive)

    def _take(self, name: str, parts: Sequence[Frame]) -> None:
        if name.startswith(GUARD):
            self._on_guard(name, parts)
            return
        # One that was given up may come back in the middle of a large message.
        is_expected = name.partition(":")[2] in self._processes
        if is_expected and (whole := self._pieces.setdefault(name, Pieces()).take(parts)):
            self.listener(name, whole)

    def _on_guard(self, name: str, parts: Sequence[Frame]) -> None:
        header, frames = decode(parts)
        process = self._processes.get(name.removeprefix(GUARD))
        if process is not None and process.is_alive():
            process.heard(header, frames)
            self.guard_listener(name.removeprefix(GUARD), header)
        elif header["op"] == "hello":
            # It was given up while its host could not be reached, and another has its rank.
            self.send(name, encode({"op": "kill"}))

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(lifeline.BEAT_S, self._tick)
        self._receive()  # what came while the loop was busy counts
        for name, process in list(self._processes.items()):
            process.tick()
            if not process.is_alive():
                del self._processes[name]
                for channel in ("work", "control"):
                    self._pieces.pop(f"{channel}:{name}", None)

    def close(self) -> None:
        """Close the port."""
        self._ticking.cancel()
        self._loop.remove_reader(self._router.fileno())
        self._router.close()
        self._doorkeeper.close()
        self._context.term()
