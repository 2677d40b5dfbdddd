"""Sends to the connections of a ROUTER that an event loop reads, and receives from them."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import zmq

from jupyter_mgpu.wire import Frame


def receive_all(
    router: "zmq.Socket[bytes]",
    take: Callable[[list["zmq.Frame"]], None],
    loop: asyncio.AbstractEventLoop,
    receive: Callable[[], None],
) -> None:
    """Take all that has come; a message that raises holds up none of those behind it.

    Args:
        router: The socket.
        take: Takes the parts of each message.
        loop: Where the socket is read.
        receive: Calls this function.
    """
    try:
        while not router.closed and int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            take(router.recv_multipart(copy=False))
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
