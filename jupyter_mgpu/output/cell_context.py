"""Lets code that runs later, in another thread, write into the cell that asked for it."""

import contextvars
import sys
import threading
from collections.abc import Callable
from typing import Any

from jupyter_mgpu.on_engine.failure import describe
from jupyter_mgpu.output import traceback_text
from jupyter_mgpu.output.publisher import current_shell

_here = threading.local()  # .parent: the request whose cell the thread writes to


class CellContext:
    """The cell that runs now on the calling thread."""

    def __init__(self) -> None:
        kernel = getattr(current_shell(), "kernel", None)
        self._parent = dict(kernel.get_parent()) if kernel is not None else None
        # ipykernel keeps the cell that the standard streams write to in here.
        self._context = contextvars.copy_context()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function; what it prints and shows appears in the cell."""
        if self._parent is not None:
            _hook_displays()
        _here.parent = self._parent
        try:
            return self._context.run(function, *args)
        finally:
            _here.parent = None

    def show_error(self, title: str, error: BaseException) -> None:
        """Show an exception in the cell, with the notebook's own lines."""
        failure = describe(error)
        traceback_text.fill_lines(failure)
        self.run(_write_error, "\n".join([title, *traceback_text.render(failure), ""]))


def _write_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _hook_displays() -> None:
    """Send this thread's displays to the cell that it writes to."""
    publisher = getattr(current_shell(), "display_pub", None)
    register = getattr(publisher, "register_hook", None)  # for the calling thread only
    if register is not None and not getattr(_here, "is_hooked", False):
        _here.is_hooked = True
        register(_readdress)


def _readdress(message: dict[str, Any]) -> dict[str, Any]:
    parent = getattr(_here, "parent", None)
    if parent:
        message["parent_header"] = parent["header"]
    return message
