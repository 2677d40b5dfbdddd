"""What the engines of all pools of this kernel share through it: constants, queues and modules.

It sees packed objects only. An engine asks (`op: request`), the pool's inbox hands that in here, in
the owner's thread, and the answer goes to the engine's control thread.
"""

from jupyter_mgpu.exchange import modules, published, queues
from jupyter_mgpu.exchange.lines import Line, attach, open_lines, place
from jupyter_mgpu.exchange.lines import remove as _remove
from jupyter_mgpu.wire import Frame, Header


def detach(line: Line) -> None:
    """Take note that a pool has ended."""
    _remove(line)
    published.forget_line(line)
    queues.forget_line(line)
    modules.forget_line(line)


def take(line: Line, header: Header, frames: list[Frame]) -> bool:
    """Take an event of a pool; False if others should get it. Quick, and runs no code of users."""
    if header["op"] == "engine_died":
        queues.forget_engine(line, header["rank"])
    if header["op"] != "request":
        return False
    if header["to"] == "queue":
        queues.answer(line, header, frames)
    elif header["to"] == "module" and "name" in header:
        modules.answer(line, header)
    elif "key" in header:
        published.answer(line, header)
    return True


__all__ = [
    "Line",
    "attach",
    "detach",
    "modules",
    "open_lines",
    "place",
    "published",
    "queues",
    "take",
]
