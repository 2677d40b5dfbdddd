"""Speaks to ipyparallel's hub in an engine's name."""

import json
from pathlib import Path

import zmq
from jupyter_client.session import Session

LINGER_MS = 1000


def unregister(connection_file: Path, engine_id: int) -> None:
    """Tell the hub that an engine has ended, as the engine's nanny would.

    Else the hub finds out by missed heartbeats, in 10 s; until then `pool.client` waits for the
    dead engine, and the new one of the same rank does not get its number.

    Args:
        connection_file: The controller's file for engines.
        engine_id: The engine's number, which is its rank.
    """
    try:
        info = json.loads(connection_file.read_text())
    except (OSError, ValueError):
        return  # no controller: nobody waits
    session = Session(
        key=info["key"].encode(),
        signature_scheme=info["signature_scheme"],
        packer=info["pack"],
        unpacker=info["unpack"],
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as socket:
        socket.linger = LINGER_MS
        socket.connect(f"{info['interface']}:{info['registration']}")
        session.send(socket, "unregistration_request", content={"id": engine_id})
