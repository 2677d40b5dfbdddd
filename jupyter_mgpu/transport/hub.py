"""Speaks to ipyparallel's hub in an engine's name."""

from collections.abc import Mapping
from typing import Any

import zmq
from jupyter_client.session import Session

from jupyter_mgpu import curve

LINGER_MS = 1000


def unregister(connection: Mapping[str, Any], engine_id: int) -> None:
    """Tell the hub that an engine has ended, as the engine's nanny would.

    Else the hub finds out by missed heartbeats, in 10 s; until then `pool.client` waits for the
    dead engine, and the new one of the same rank does not get its number.

    Args:
        connection: What engines join the controller with.
        engine_id: The engine's number, which is its rank.
    """
    session = Session(
        key=connection["key"].encode(),
        signature_scheme=connection["signature_scheme"],
        packer=connection["pack"],
        unpacker=connection["unpack"],
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as socket:
        socket.linger = LINGER_MS
        if (server_key := connection.get("curve_serverkey")) is not None:
            keys = (server_key.encode(), *zmq.curve_keypair())
            curve.use_client_keys(socket, b" ".join(keys).decode())
        socket.connect(f"{connection['interface']}:{connection['registration']}")
        session.send(socket, "unregistration_request", content={"id": engine_id})
