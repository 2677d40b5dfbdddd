"""The owner's unix socket: one JSON request a line, one JSON answer a line."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jupyter_mgpu.errors import OwnerError, OwnerSilentError

Operation = Callable[..., Any | Awaitable[Any]]


async def serve(path: Path, operations: dict[str, Operation]) -> asyncio.AbstractServer:
    """Answer requests such as `{"op": "interrupt", "task": "t3"}`.

    Args:
        path: The socket's file; only this user may connect.
        operations: What may be asked for; keyword arguments are the request's other fields.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                reply = await _answer(line, operations)
                writer.write(json.dumps(reply, default=str).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            return  # the asker went away
        except asyncio.CancelledError:
            return  # the pool has ended; Python 3.11 would log that as an error
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, path)  # in the pool's 0700 folder
    path.chmod(0o600)
    return server


async def _answer(line: bytes, operations: dict[str, Operation]) -> dict[str, Any]:
    try:
        request = json.loads(line)
        name = request.pop("op")
        if name not in operations:
            known = ", ".join(sorted(operations))
            raise OwnerError(f"{name!r} was asked for, but the owner knows: {known}.")
        value = operations[name](**request)
        if isinstance(value, Awaitable):
            value = await value
    except Exception as error:  # noqa: BLE001 - the asker gets it
        kind = "" if isinstance(error, OwnerError) else f"{type(error).__name__}: "
        return {"error": f"{kind}{error}"}
    return {"value": value}


def ask(path: str | Path, operation: str, *, timeout: float = 5.0, **fields: Any) -> Any:
    """Ask an owner something, from any process of the same user.

    Args:
        path: The socket named in the pool's record.
        operation: Such as `status`, `tasks`, `interrupt`, `cancel`, `stop`.
        timeout: Seconds to wait for the answer.
        **fields: The operation's arguments.

    Raises:
        OwnerSilentError: If the owner does not answer in time, or is gone.
        OwnerError: If it refuses.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(json.dumps({"op": operation, **fields}).encode() + b"\n")
            line = connection.makefile("rb").readline()
    except OSError as error:
        raise OwnerSilentError(
            f"The owner of the pool at {path} did not answer {operation!r} ({error}). "
            "Its kernel may have ended; `%parpool status` tells."
        ) from error
    if not line:
        raise OwnerSilentError(f"The owner of the pool at {path} ended while it was asked.")
    reply = json.loads(line)
    if "error" in reply:
        raise OwnerError(f"The owner refused {operation!r}. {reply['error'].rstrip('.')}.")
    return reply["value"]
