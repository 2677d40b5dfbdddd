"""Sends what a task displays to the notebook: figures, HTML, tables, its last expression.

Without a running task everything takes the path that it took before.
"""

import base64
import builtins
import getpass
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

from jupyter_mgpu.on_engine import captures
from jupyter_mgpu.on_engine.comms import CommRelay


class MessageSink(Protocol):
    """What the hooks need of `TaskOutput`."""

    @property
    def task(self) -> str | None:
        """The task that the calling thread works for."""

    def add_message(self, header: dict[str, Any], frames: list[Any], task: str) -> None:
        """Queue a message of that task."""

    def write(self, name: str, text: str) -> int:
        """Write text of that task."""

    def working_for(self, task: str) -> AbstractContextManager[None]:
        """Attribute what the calling thread writes in a with-block to a task."""


class DisplayHooks:
    """Stands in for the shell's publisher, display hook and traceback printer.

    Args:
        sink: Where messages go.
        shell: The IPython shell; its attributes are replaced on this one instance.
    """

    def __init__(self, sink: MessageSink, shell: Any) -> None:
        self._sink = sink
        self._shell = shell
        self._publisher = shell.display_pub
        self._publish: Callable[..., Any] = self._publisher.publish
        self._clear: Callable[..., Any] = self._publisher.clear_output
        self._write_format_data: Callable[..., Any] = shell.displayhook.write_format_data
        self._show_traceback: Callable[..., Any] = shell._showtraceback  # noqa: SLF001 - the one place that prints
        self._displayhook: Callable[[Any], Any] = sys.displayhook
        self.comms = CommRelay(sink, shell)

    def install(self) -> None:
        """Put the hooks in."""
        self._publisher.publish = self.publish
        self._publisher.clear_output = self.clear_output
        self._shell.displayhook.write_format_data = self._on_format_data
        self._shell._showtraceback = self._on_traceback  # noqa: SLF001 - as above
        sys.displayhook = self.show_result
        self.comms.install()

    def publish(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        source: Any = None,
        *,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        """Publish a display; the signature is IPython's."""
        task = self._sink.task
        if task is None:
            if source is not None:
                kwargs["source"] = source
            self._publish(data, metadata, transient=transient, update=update, **kwargs)
            return
        kind = "update_display_data" if update else "display_data"
        self._send(task, kind, data, metadata, transient)

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's signature
        """Clear this rank's own outputs."""
        task = self._sink.task
        if task is None:
            self._clear(wait)
            return
        capture = captures.current()
        if capture is not None:
            capture.clear(wait=bool(wait))
            return
        header = {"op": "display", "kind": "clear_output", "content": {"wait": bool(wait)}}
        self._sink.add_message(header, [], task)

    def show_result(self, value: Any) -> None:
        """Show the value of a last expression; stands in for `sys.displayhook`."""
        task = self._sink.task
        if task is None:
            self._displayhook(value)
        elif value is not None:
            data, metadata = self._shell.display_formatter.format(value)
            if data:
                self._send(task, "execute_result", data, metadata, None)

    def _on_format_data(
        self, format_dict: Mapping[str, Any], md_dict: Mapping[str, Any] | None = None
    ) -> None:
        task = self._sink.task
        if task is None:
            self._write_format_data(format_dict, md_dict)
            return
        hook = self._shell.displayhook
        if getattr(hook, "msg", None) is not None:
            hook.msg = None  # nothing is left for the hook to send
        self._send(task, "execute_result", format_dict, md_dict, None)

    def _on_traceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        """Errors of formatters and event callbacks: IPython prints them itself."""
        capture = captures.current()
        if self._sink.task is None:
            self._show_traceback(etype, evalue, stb)
        elif capture is not None:
            capture.fail(etype, evalue, stb)
        else:
            self._sink.write("stderr", "\n".join(stb) + "\n")

    def _send(
        self,
        task: str,
        kind: str,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None,
        transient: Mapping[str, Any] | None,
    ) -> None:
        content = {
            "data": {mime: _jsonable(value) for mime, value in data.items()},
            "metadata": _jsonable(metadata or {}),
            "transient": _jsonable(transient or {}),
        }
        capture = captures.current()
        if capture is not None and kind != "update_display_data":
            capture.show(content)
            return
        self._sink.add_message({"op": "display", "kind": kind, "content": content}, [], task)

    def flush_figures(self) -> None:
        """Do what IPython does after a cell: inline figures are drawn and shown."""
        # Only with pyplot loaded is there anything to show; other callbacks are the cells'.
        if "matplotlib.pyplot" in sys.modules:
            self._shell.events.trigger("post_execute")


def _jsonable(value: Any) -> Any:
    """Return a value as JSON can hold it: bytes (images) as base64, what is unknown as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_jsonable(item) for item in value]
    return str(value)


def forbid_input(current_task: Callable[[], str | None], rank: int) -> None:
    """Let `input`, `getpass` and `breakpoint` say in a task why they cannot ask anybody.

    Args:
        current_task: The task that the calling thread works for.
        rank: This engine's place in the pool, for the message.
    """

    def guard(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def asks(*args: Any, **kwargs: Any) -> Any:
            if current_task() is None:
                return original(*args, **kwargs)
            _refuse(name, rank)

        asks.__name__ = name
        return asks

    builtins.input = guard("input", builtins.input)
    getpass.getpass = guard("getpass", getpass.getpass)
    sys.breakpointhook = guard("breakpoint", sys.breakpointhook)


def _refuse(name: str, rank: int) -> NoReturn:
    instead = (
        "Run the function in the notebook's kernel to step through it, or print what you need."
        if name == "breakpoint"
        else "Ask in the notebook before the cell, and use the answer in it."
    )
    raise RuntimeError(f"{name}() was called on rank {rank}, but no keyboard is there. {instead}")
