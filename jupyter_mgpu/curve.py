"""The keys of a pool's connections over TCP: who has them may speak, and nobody else can listen.

The owner makes them at the start and gives engines theirs with their environment. Both sides prove
that they have their keys before the first message; zmq drops who cannot.
"""

import asyncio
from dataclasses import dataclass

import zmq
from zmq.utils import z85

KEYS_VARIABLE = "MGPU_CURVE"
"""Names an engine's keys to it."""

_DOOR = "inproc://zeromq.zap.01"  # where zmq asks whether a client may come in


@dataclass(frozen=True, slots=True)
class Keys:
    """The two pairs of keys of one pool; all in zmq's text form."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @property
    def for_clients(self) -> str:
        """What a client must know."""
        keys = (self.server_public, self.client_public, self.client_secret)
        return b" ".join(keys).decode()


def make_keys() -> Keys:
    """Make the keys of a pool."""
    return Keys(*zmq.curve_keypair(), *zmq.curve_keypair())


def use_client_keys(socket: "zmq.Socket[bytes]", keys: str) -> None:
    """Have a socket that is about to connect prove itself.

    Args:
        socket: The socket.
        keys: What `Keys.for_clients` said.
    """
    server, public, secret = keys.encode().split(b" ")
    socket.curve_serverkey = server
    socket.curve_publickey = public
    socket.curve_secretkey = secret


def use_server_keys(socket: "zmq.Socket[bytes]", keys: Keys) -> None:
    """Have a socket that is about to listen ask for proof."""
    socket.curve_server = True
    socket.curve_secretkey = keys.server_secret


class Doorkeeper:
    """Lets clients with a pool's own key in, and no others.

    Args:
        context: Whose listening sockets it guards; make it before they listen.
        keys: The pool's.
        loop: Where it answers.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", keys: Keys, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._public = z85.decode(keys.client_public)
        self._loop = loop
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_DOOR)
        loop.add_reader(self._socket.fileno(), self._answer)

    def _answer(self) -> None:
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            version, request, _, _, _, mechanism, *credentials = self._socket.recv_multipart()
            is_known = mechanism == b"CURVE" and credentials == [self._public]
            status = (b"200", b"OK") if is_known else (b"400", b"unknown key")
            self._socket.send_multipart([version, request, *status, b"", b""])

    def close(self) -> None:
        """Let nobody in any more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
