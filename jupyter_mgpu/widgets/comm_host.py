"""The host of our MIME type: a page that has opened a comm for a view's id."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from jupyter_mgpu.widgets.live_view import LiveView
from jupyter_mgpu.widgets.pages import Pages
from jupyter_mgpu.widgets.states import State

TARGET = "jupyter_mgpu.view"
PAGE = "page"
"""There is one at the other end of a comm."""

Act = Callable[[LiveView, dict[str, Any]], None]
"""Does what a button of a view asks for."""


class CommHost:
    """One page that shows a view; its messages come in any thread.

    Args:
        comm: The comm that the page has opened.
        view: What it shows.
        act: Takes what its buttons ask for.
    """

    def __init__(self, comm: Any, view: LiveView, act: Act) -> None:
        self._comm = comm
        self._view = view
        self._act = act
        self._pages = Pages(is_assumed=False)
        self._pages.heard(PAGE, is_visible=True)
        keep_subshell(comm)
        comm.on_msg(self._on_message)
        comm.on_close(lambda _: view.leave(self))

    def _on_message(self, message: dict[str, Any]) -> None:
        data = message["content"]["data"]
        self._pages.heard(PAGE, is_visible=bool(data.get("visible", True)))
        if "action" in data:
            self._act(self._view, data)

    def is_watched(self, now_s: float) -> bool:
        """Whether the page is visible."""
        return self._pages.is_watched(now_s)

    def send_state(self, state: State) -> None:
        """Draw a state."""
        self.send({"state": state})

    def send(self, message: dict[str, Any]) -> None:
        """Send anything else."""
        if "ping" in message:
            self._pages.asked(time.monotonic())
        with contextlib.suppress(Exception):  # a front end that went away
            self._comm.send(message)

    def close(self) -> None:
        """Tell the page that its view is forgotten."""
        self.send({"gone": True})
        with contextlib.suppress(Exception):
            self._comm.close()


def keep_subshell(comm: Any) -> None:
    """Let messages of a comm be handled while a cell runs.

    JupyterLab sends them to a subshell of their own. ipykernel 7.4 handles them where this end has
    last sent something, which was the main shell, and so after the running cell.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default: default  # noqa: SLF001 - an override, with a test of its own
