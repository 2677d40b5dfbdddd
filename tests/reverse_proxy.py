"""What stands before a Jupyter server elsewhere: TLS, or a proxy that knows no WebSocket."""

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

REFUSED = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
MOST_BYTES = 65536


def make_certificate(folder: Path) -> Path:
    """Make a certificate that nobody has signed, with its key in the same file."""
    file = folder / "proxy.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-keyout", str(file), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    file.write_text(file.read_text() + (folder / "cert.pem").read_text())
    return file


@contextlib.contextmanager
def reverse_proxy(
    port: int, *, refused: str | None = None, certificate: Path | None = None
) -> Iterator[int]:
    """Listen before a server's port, and pass on what comes; yields the port.

    Args:
        port: Of the server.
        refused: The path of which no request is upgraded to a WebSocket. A browser opens a
            connection of its own for one, so that the first request of a connection tells.
        certificate: For TLS.
    """
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            is_upgrade = b"upgrade: websocket" in head.lower()
            if refused and is_upgrade and refused in head.partition(b"\r\n")[0].decode():
                writer.write(REFUSED)
                writer.close()
                return
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", port)
            their_writer.write(head)
            await asyncio.gather(_pass(reader, their_writer), _pass(their_reader, writer))

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until it ends."""
    with contextlib.suppress(OSError):
        while data := await reader.read(MOST_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _end_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
