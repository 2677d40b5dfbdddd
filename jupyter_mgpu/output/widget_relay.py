"""Lets widgets that were made on an engine show in the notebook and talk back to their rank."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_mgpu.output.publisher import Publisher, current_shell

SendToRank = Callable[[int, dict[str, Any], list[Any]], None]
"""Sends a message to a rank's engine: rank, header, frames. Callable from any thread."""


class CommProxy:
    """The kernel's end of a comm whose other end is on an engine; ipykernel calls it as a comm.

    Args:
        comm_id: The comm.
        target_name: What in the front end it talks to.
        send: Sends a header and frames to its engine.
    """

    primary = True

    def __init__(
        self, comm_id: str, target_name: str, send: Callable[[dict[str, Any], list[Any]], None]
    ) -> None:
        self.comm_id = comm_id
        self.target_name = target_name
        self._send = send
        self._closed = False

    def handle_msg(self, message: Mapping[str, Any]) -> None:
        """Pass a front end's message on."""
        self._forward("comm_msg", message)

    def handle_close(self, message: Mapping[str, Any]) -> None:
        """Pass the front end's goodbye on."""
        self._forward("comm_close", message)

    def _forward(self, msg_type: str, message: Mapping[str, Any]) -> None:
        header = {
            "op": "comm",
            "msg_type": msg_type,
            "content": message["content"],
            "metadata": message.get("metadata", {}),
        }
        self._send(header, [bytes(buffer) for buffer in message.get("buffers", ())])


class WidgetRelay:
    """The comms of one cell's ranks.

    Args:
        publisher: The cell.
        send: Sends a message to a rank's engine.
    """

    def __init__(self, publisher: Publisher, send: SendToRank) -> None:
        self._publisher = publisher
        self._send = send

    def handle(self, rank: int, message: Mapping[str, Any], frames: Sequence[Any]) -> None:
        """Take a `comm` message of a rank."""
        manager = getattr(getattr(current_shell(), "kernel", None), "comm_manager", None)
        if manager is None:
            return
        content, msg_type = message["content"], message["msg_type"]
        comm_id = content["comm_id"]
        if msg_type == "comm_open":
            target = content.get("target_name", "")
            manager.register_comm(
                CommProxy(comm_id, target, lambda header, parts: self._send(rank, header, parts))
            )
        elif msg_type == "comm_close":
            manager.comms.pop(comm_id, None)
        buffers = [bytes(frame) for frame in frames]
        self._publisher.comm(msg_type, content, message.get("metadata", {}), buffers)
