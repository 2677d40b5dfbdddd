"""Lets widgets that were made on an engine show in the notebook and talk back to their rank.

The kernel knows their state as well, from the messages that pass: a page that is loaded again
gets it from here, also while the engine is busy.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_mgpu.errors import PoolClosedError
from jupyter_mgpu.output.publisher import KernelPublisher, Publisher, current_shell

CONTROL = "jupyter.widget.control"
"""The comm on which a page asks for the states of all widgets."""

SendToRank = Callable[[int, dict[str, Any], list[Any]], None]
"""Sends a message to a rank's engine: rank, header, frames. Callable from any thread."""


class CommProxy:
    """The kernel's end of a comm whose other end is on an engine; ipykernel calls it as a comm.

    Args:
        comm_id: The comm.
        target_name: What in the front end it talks to.
        send: Sends a header and frames to its engine.
        kernel: The kernel.
    """

    primary = True

    def __init__(
        self,
        comm_id: str,
        target_name: str,
        send: Callable[[dict[str, Any], list[Any]], None],
        kernel: Any,
    ) -> None:
        self.comm_id = comm_id
        self.target_name = target_name
        self.state: dict[str, Any] = {}
        self.buffers: dict[tuple[Any, ...], bytes] = {}
        self._send = send
        self._kernel = kernel
        self._closed = False

    def note(self, data: Mapping[str, Any], buffers: Sequence[bytes]) -> None:
        """Take over what a message says of the widget's state."""
        state = data.get("state")
        if not isinstance(state, Mapping):
            return
        self.state |= state
        kept = {path: part for path, part in self.buffers.items() if path[0] not in state}
        named = zip(map(tuple, data.get("buffer_paths", ())), buffers, strict=False)
        self.buffers = {**kept, **dict(named)}

    def handle_msg(self, message: Mapping[str, Any]) -> None:
        """Pass a front end's message on; what it asks of the state is answered here."""
        data = message["content"].get("data", {})
        if data.get("method") == "request_state":
            self._answer(message)
            return
        self.note(data, [bytes(buffer) for buffer in message.get("buffers", ())])
        self._forward("comm_msg", message)

    def _answer(self, message: Mapping[str, Any]) -> None:
        paths = [list(path) for path in self.buffers]
        data = {"method": "update", "state": self.state, "buffer_paths": paths}
        place = KernelPublisher(self._kernel, dict(message))
        content = {"comm_id": self.comm_id, "data": data}
        place.comm("comm_msg", content, {}, list(self.buffers.values()))

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
        with contextlib.suppress(PoolClosedError):  # the page still shows its last state
            self._send(header, [bytes(buffer) for buffer in message.get("buffers", ())])


class ControlComm:
    """A control comm whose answer has the engines' widgets beside the kernel's own.

    Args:
        comm: The comm that the page has opened.
        manager: The kernel's comm manager.
    """

    def __init__(self, comm: Any, manager: Any) -> None:
        self._comm = comm
        self._manager = manager

    def on_msg(self, callback: Any) -> None:
        """Hear the page."""
        self._comm.on_msg(callback)

    def send(self, data: dict[str, Any], metadata: Any = None, buffers: Any = None) -> None:
        """Answer the page."""
        if data.get("method") == "update_states":
            states, paths = dict(data["states"]), list(data["buffer_paths"])
            buffers = list(buffers or ())
            for proxy in list(self._manager.comms.values()):
                if isinstance(proxy, CommProxy) and "_model_name" in proxy.state:
                    states[proxy.comm_id] = {
                        "model_name": proxy.state["_model_name"],
                        "model_module": proxy.state["_model_module"],
                        "model_module_version": proxy.state["_model_module_version"],
                        "state": proxy.state,
                    }
                    paths += [[proxy.comm_id, "state", *path] for path in proxy.buffers]
                    buffers += proxy.buffers.values()
            data = {**data, "states": states, "buffer_paths": paths}
        self._comm.send(data, metadata, buffers)


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
        kernel = getattr(current_shell(), "kernel", None)
        manager = getattr(kernel, "comm_manager", None)
        if manager is None:
            return
        content, msg_type = message["content"], message["msg_type"]
        comm_id = content["comm_id"]
        buffers = [bytes(frame) for frame in frames]
        if msg_type == "comm_open":
            _join_control(manager)
            target = content.get("target_name", "")
            send = self._send
            manager.register_comm(
                CommProxy(comm_id, target, lambda *parts: send(rank, *parts), kernel)
            )
        proxy = manager.comms.get(comm_id)
        if isinstance(proxy, CommProxy):
            proxy.note(content["data"], buffers)
        if msg_type == "comm_close":
            manager.comms.pop(comm_id, None)
        self._publisher.comm(msg_type, content, message.get("metadata", {}), buffers)


def _join_control(manager: Any) -> None:
    """Let the kernel's answer to a page that is loaded tell of the engines' widgets, too."""
    import ipywidgets  # noqa: F401 - registers the kernel's own answer, once

    own = manager.targets.get(CONTROL)
    if own is None or getattr(own, "has_engines", False):
        return

    def opened(comm: Any, message: Mapping[str, Any]) -> None:
        own(ControlComm(comm, manager), message)

    opened.has_engines = True  # type: ignore[attr-defined]
    manager.targets[CONTROL] = opened
