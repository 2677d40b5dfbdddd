"""Relays the messages of widgets: made on an engine, they show in the notebook and talk back."""

import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol

from jupyter_mgpu.on_engine import captures


class _Sink(Protocol):
    @property
    def task(self) -> str | None:
        """The task that the calling thread works for."""

    def add_message(self, header: dict[str, Any], frames: list[Any], task: str) -> None:
        """Queue a message of that task."""

    def working_for(self, task: str) -> AbstractContextManager[None]:
        """Attribute what the calling thread writes in a with-block to a task."""


class CommRelay:
    """Makes the comms that tasks open go to the notebook.

    Args:
        sink: Where their messages go.
        shell: The IPython shell.
    """

    def __init__(self, sink: _Sink, shell: Any) -> None:
        self._sink = sink
        self._shell = shell
        self._lock = threading.Lock()

    def install(self) -> None:
        """Let comms that are created by a task be relayed; others are as before."""
        import comm

        original = comm.create_comm
        relayed = relay_class(self._sink)

        def create(*args: Any, **kwargs: Any) -> Any:
            if self._sink.task is None:
                return original(*args, **kwargs)
            captures.install(lambda: self._sink.task is not None, self._shell)
            return relayed(*args, **kwargs)

        comm.create_comm = create

    def receive(self, header: dict[str, Any], frames: list[Any]) -> None:
        """Hand a front end's message to its comm here; a comm that is gone is no error.

        Callbacks of widgets run in the calling thread, one at a time.
        """
        import comm

        manager = comm.get_comm_manager()
        target = manager.comms.get(header["content"].get("comm_id"))
        if target is None:
            return
        message = {
            "header": {"msg_type": header["msg_type"]},
            "parent_header": {},
            "content": header["content"],
            "metadata": header.get("metadata", {}),
            "buffers": list(frames),
        }
        # What a callback prints belongs to the cell that made the widget.
        with self._lock, self._sink.working_for(getattr(target, "_mgpu_task", "")):
            if header["msg_type"] == "comm_close":
                manager.comms.pop(target.comm_id, None)
                target.handle_close(message)
            else:
                target.handle_msg(message)


def relay_class(sink: _Sink) -> type:
    """Make a comm class whose messages go through a sink.

    Args:
        sink: Where messages go; the task of a comm is the one that made it.
    """
    from comm.base_comm import BaseComm

    class RelayedComm(BaseComm):  # type: ignore[misc, unused-ignore]
        """A comm whose other end is the notebook, behind the owner."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._mgpu_task = sink.task or ""
            super().__init__(*args, **kwargs)

        def publish_msg(
            self,
            msg_type: str,
            data: dict[str, Any] | None = None,
            metadata: dict[str, Any] | None = None,
            buffers: list[Any] | None = None,
            **keys: Any,
        ) -> None:
            """Send one message of this comm."""
            header = {
                "op": "comm",
                "msg_type": msg_type,
                "content": {"comm_id": self.comm_id, "data": dict(data or {}), **keys},
                "metadata": metadata or {},
            }
            frames = [bytes(buffer) for buffer in buffers or []]
            sink.add_message(header, frames, sink.task or self._mgpu_task)

    return RelayedComm
