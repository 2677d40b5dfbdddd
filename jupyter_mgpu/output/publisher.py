"""Publishes to the front end from any thread, always into the cell that caused it.

A kernel attaches output to the cell it runs now; output of the engines arrives later and on other
threads. So the parent is taken when a publisher is made, and given with every message.
"""

import shutil
import sys
from typing import Any, Protocol

Bundle = dict[str, Any]
_ERASE_REST = "\x1b[K"


class Publisher(Protocol):
    """One cell of a notebook, or a terminal, as a place to show things."""

    can_update: bool
    """Whether what was shown can be replaced later."""
    can_rewrite: bool
    """Whether its last line can be written over: a terminal."""
    cell_id: str
    """The same for all publishers of one run of one cell."""

    def display(
        self,
        data: Bundle,
        metadata: dict[str, Any] | None = None,
        *,
        display_id: str | None = None,
        update: bool = False,
    ) -> None:
        """Show a MIME bundle, or replace the one of that display id."""

    def stream(self, name: str, text: str) -> None:
        """Append text to the cell's `stdout` or `stderr`."""

    def clear(self, *, wait: bool) -> None:
        """Clear the cell's output, at once or when the next output comes."""

    def comm(
        self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[Any]
    ) -> None:
        """Send a widget's message to the front end."""


class KernelPublisher:
    """Publishes through an IPython kernel.

    Args:
        kernel: The running ipykernel.
        parent: The request that messages belong to.
    """

    can_update = True
    can_rewrite = False

    def __init__(self, kernel: Any, parent: dict[str, Any]) -> None:
        self._kernel = kernel
        self._parent = parent
        self.cell_id = str(parent.get("header", {}).get("msg_id", ""))

    def _send(
        self,
        msg_type: str,
        content: dict[str, Any],
        *,
        metadata: dict[str, Any] | None = None,
        buffers: list[Any] | None = None,
        topic: str | None = None,
    ) -> None:
        # iopub_socket hands the message to ipykernel's own thread, so any thread may send.
        self._kernel.session.send(
            self._kernel.iopub_socket,
            msg_type,
            content,
            parent=self._parent,
            ident=(topic or msg_type).encode(),
            metadata=metadata,
            buffers=buffers,
        )

    def display(
        self,
        data: Bundle,
        metadata: dict[str, Any] | None = None,
        *,
        display_id: str | None = None,
        update: bool = False,
    ) -> None:
        """Show a MIME bundle, or replace the one of that display id."""
        transient = {"display_id": display_id} if display_id else {}
        content = {"data": data, "metadata": metadata or {}, "transient": transient}
        self._send("update_display_data" if update else "display_data", content)

    def stream(self, name: str, text: str) -> None:
        """Append text to the cell's `stdout` or `stderr`."""
        self._send("stream", {"name": name, "text": text}, topic=f"stream.{name}")

    def clear(self, *, wait: bool) -> None:
        """Clear the cell's output, at once or when the next output comes."""
        self._send("clear_output", {"wait": wait})

    def comm(
        self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[Any]
    ) -> None:
        """Send a widget's message to the front end."""
        topic = f"comm-{content['comm_id']}"
        self._send(msg_type, content, metadata=metadata, buffers=buffers or None, topic=topic)


class TextPublisher:
    """Writes the plain text of everything to the standard streams: terminals, scripts, capture."""

    can_update = False
    cell_id = ""

    def __init__(self) -> None:
        # Kept: a captured cell must stay captured, also from other threads.
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        self.can_rewrite = sys.stdout.isatty()
        self._has_open_line = False

    def display(
        self,
        data: Bundle,
        metadata: dict[str, Any] | None = None,  # noqa: ARG002 - text has none
        *,
        display_id: str | None = None,
        update: bool = False,
    ) -> None:
        """Print the bundle's text; an update as a new line, or over the last one of a terminal."""
        text = str(data.get("text/plain", ""))
        if display_id and self.can_rewrite and "\n" not in text:
            width = shutil.get_terminal_size().columns - 1  # a wrapped line is not written over
            self._write("stdout", f"\r{text[:width]}{_ERASE_REST}")
            self._has_open_line = True
        elif text or not update:
            self.stream("stdout", text + "\n")

    def stream(self, name: str, text: str) -> None:
        """Write text; a line that was written over ends before."""
        if self._has_open_line:
            self._has_open_line = False
            self._write("stdout", "\n")
        self._write(name, text)

    def _write(self, name: str, text: str) -> None:
        stream = self._streams.get(name, self._streams["stdout"])
        stream.write(text)
        stream.flush()

    def clear(self, *, wait: bool) -> None:
        """Do nothing: printed text stays."""

    def comm(
        self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[Any]
    ) -> None:
        """Do nothing: a terminal shows no widgets."""


def capture() -> Publisher:
    """Return a publisher for the cell that runs now on the calling thread.

    Returns:
        One that publishes through the kernel, or one that prints where there is no kernel or the
        cell's output is captured (`%%capture`).
    """
    shell = current_shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is None or getattr(kernel, "iopub_socket", None) is None:
        return TextPublisher()
    if type(shell.display_pub).__name__ == "CapturingDisplayPublisher":
        return TextPublisher()
    return KernelPublisher(kernel, dict(kernel.get_parent()))


def current_shell() -> Any:
    """Return the running IPython shell, or None; it never imports IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
