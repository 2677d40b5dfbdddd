"""Which of its addresses the owner of an engine on another host is reached at, found by trying."""

import os
import time
from collections.abc import MutableMapping, Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

from jupyter_mgpu import curve
from jupyter_mgpu.clusters import probe
from jupyter_mgpu.on_engine import lifeline

VARIABLE = "MGPU_ADDRESSES"
"""The candidates, the best one first; not set where there is nothing to try."""
CONNECT_S = 3.0
ANSWER_S = 20.0
"""So long the owner may take to answer: it is slow while its host, or the kernel, is busy."""
GRACE_S = 0.5
"""So long the better ones may still answer when one has."""
UNPROVEN = f"what answers there does not prove within {ANSWER_S:g} s that it is the pool"

_ENDS = (
    zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


def bracketed(address: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


def find(environment: MutableMapping[str, str] = os.environ) -> None:
    """Take the first address at which the owner answers into the environment.

    Both sides prove themselves in the answer, as in all that follows.

    Raises:
        SystemExit: If there is none; what it prints names all that were tried.
    """
    addresses = environment.get(VARIABLE, "").split(",")
    if addresses == [""]:
        return
    port = int(environment[lifeline.URL_VARIABLE].rpartition(":")[2])
    address = _first_that_answers(addresses, port, environment[curve.KEYS_VARIABLE])
    if address is None:
        targets = [{"address": each, "port": port, "token": ""} for each in addresses]
        troubles = probe.connect_all({"targets": targets, "timeout": CONNECT_S})
        tried = ", ".join(
            f"{address}: {trouble or UNPROVEN}"
            for address, trouble in zip(addresses, troubles, strict=True)
        )
        raise SystemExit(
            f"{os.uname().nodename} does not reach the notebook's host on port {port} ({tried}). "
            'Open a way, or name the right one in the cluster\'s description: address = "ADDRESS".'
        )
    url = f"tcp://{bracketed(address)}:{port}"
    environment.update(
        {
            "MGPU_URL": url,
            lifeline.URL_VARIABLE: url,
            "MASTER_ADDR": address,
            "MGPU_STORE": f"{address}:{environment['MASTER_PORT']}",
        }
    )


def _first_that_answers(addresses: Sequence[str], port: int, keys: str) -> str | None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []
    waiting: dict[zmq.Socket[bytes], str] = {}
    for address in addresses:
        line = context.socket(zmq.DEALER)
        line.reconnect_ivl, line.connect_timeout = -1, int(CONNECT_S * 1000)
        line.ipv6 = ":" in address
        curve.use_client_keys(line, keys)
        monitor = line.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _ENDS)
        waiting[monitor] = address
        sockets += [line, monitor]
        line.connect(f"tcp://{bracketed(address)}:{port}")
    try:
        return _wait(waiting)
    finally:
        for each in sockets:
            each.close(linger=0)
        context.term()  # its threads must not be there when the engine is forked


def _wait(waiting: "dict[zmq.Socket[bytes], str]") -> str | None:
    order = list(waiting.values())
    answered: set[str] = set()
    deadline_s = time.monotonic() + ANSWER_S
    poller = zmq.Poller()
    for monitor in waiting:
        poller.register(monitor, zmq.POLLIN)
    while waiting and (left_s := deadline_s - time.monotonic()) > 0:
        for monitor, _ in poller.poll(int(left_s * 1000) + 1):
            event = recv_monitor_message(monitor)["event"]
            poller.unregister(monitor)
            address = waiting.pop(monitor)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                answered.add(address)
                deadline_s = min(deadline_s, time.monotonic() + GRACE_S)
        if answered and next(a for a in order if a in {*answered, *waiting.values()}) in answered:
            break
    return next((address for address in order if address in answered), None)
