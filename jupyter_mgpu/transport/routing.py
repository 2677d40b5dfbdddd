"""Sends to the connections of a ROUTER that an event loop reads, and receives from them."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import zmq

from jupyter_mgpu.wire import Frame

SLICE_S = 0.01
"""So long messages are taken before the loop does something else, such as a Stop."""


def receive_all(
    router: "zmq.Socket[bytes]",
    take: Callable[[str, list[Frame]], None],
    loop: asyncio.AbstractEventLoop,
    receive: Callable[[], None],
) -> None:
    """Take what has come, the rest soon; a message that raises holds up none of those behind it.

    Args:
        router: The socket.
        take: Takes the connection and the parts of each message.
        loop: Where the socket is read.
        receive: Calls this function.
    """
    until_s = loop.time() + SLICE_S
    try:
        while not router.closed and int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            if loop.time() > until_s:
                loop.call_soon(receive)
                return
            name, *parts = router.recv_multipart(copy=False)
            take(name.bytes.decode(errors="replace"), [part.buffer for part in parts])
    except BaseException:
        loop.call_soon(receive)  # zmq's descriptor tells of new messages once
        raise


def send_to(
    router: "zmq.Socket[bytes]",
    connection: str,
    parts: Sequence[Frame],
    loop: asyncio.AbstractEventLoop,
    receive: Callable[[], None],
) -> None:
    """Send to a connection; harmless when it has gone.

    Args:
        router: The socket, which is mandatory: it raises where there is no such connection.
        connection: Its name.
        parts: Of the message.
        loop: Where the socket is read.
        receive: Reads all that has come.
    """
    with contextlib.suppress(zmq.ZMQError):  # its death is noticed elsewhere
        router.send(connection.encode(), zmq.SNDMORE)
        if len(parts) == 1:
            router.send(parts[0])
        else:
            router.send_multipart(parts, copy=False)
    if int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
        # zmq's descriptor tells of new messages once: sending may have used that up.
        loop.call_soon(receive)
