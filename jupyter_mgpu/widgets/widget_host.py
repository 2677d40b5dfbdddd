"""The host of front ends that show widgets: an AnyWidget, where ipywidgets is there."""

import contextlib
import functools
import time
from importlib import resources
from pathlib import Path
from typing import Any

from jupyter_mgpu.output.publisher import Bundle
from jupyter_mgpu.widgets.comm_host import Act, keep_subshell
from jupyter_mgpu.widgets.live_view import LiveView
from jupyter_mgpu.widgets.pages import Pages
from jupyter_mgpu.widgets.states import State

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


class WidgetHost:
    """The widget of one view.

    Args:
        view: What it shows.
        state: Its present state.
        act: Takes what its buttons ask for.

    Raises:
        ImportError: Where there is no anywidget or no ipywidgets.
    """

    def __init__(self, view: LiveView, state: State, act: Act) -> None:
        self._view = view
        self._act = act
        self._pages = Pages(is_assumed=True)
        self._can_keep = False
        # A page that is loaded again finds the widget by the id of the view.
        self._widget = _classes().view(model_id=view.id, state=state, code=_code())
        keep_subshell(self._widget.comm)
        self._widget.on_msg(self._on_message)

    @property
    def bundle(self) -> Bundle:
        """What makes a front end show the widget."""
        content = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        return {WIDGET_MIME: content}

    def _on_message(self, _: Any, data: dict[str, Any], __: Any) -> None:
        if "visible" in data:
            self._view.heard()
            self._can_keep = bool(data.get("keeps"))
            self._pages.heard(str(data.get("page", "")), is_visible=bool(data["visible"]))
        if data.get("ask") == "bundle":
            self._can_keep = True
            self._view.save_by(self)
        if "action" in data:
            self._act(self._view, data)

    def is_watched(self, now_s: float) -> bool:
        """Whether a page may show the widget."""
        return self._pages.is_watched(now_s)

    def send_state(self, state: State) -> None:
        """Draw a state."""
        with contextlib.suppress(Exception):  # a front end that went away
            self._widget.state = state

    def send(self, message: dict[str, Any]) -> None:
        """Send anything else."""
        if "ping" in message:
            # Pages with our own host have begun to ask: this widget is not what they draw.
            self._pages.drop_assumption()
            self._pages.asked(time.monotonic())
        if "bundle" not in message or self._can_keep:
            with contextlib.suppress(Exception):
                self._widget.send(message)

    def close(self) -> None:
        """Remove the widget."""
        with contextlib.suppress(Exception):
            self._widget.close()


class _Classes:
    """The two widget classes; they need ipywidgets to be made."""

    def __init__(self) -> None:
        import anywidget
        import ipywidgets
        import traitlets

        class Code(ipywidgets.Widget):  # type: ignore[misc] # untyped
            """The code of all views, once per kernel and notebook."""

            texts = traitlets.Dict().tag(sync=True)

        class View(anywidget.AnyWidget):  # type: ignore[misc] # untyped
            """One view; what it runs is a small loader of the shared code."""

            _esm = _text("loader.js")
            state = traitlets.Dict().tag(sync=True)
            code = traitlets.Instance(Code).tag(sync=True, **ipywidgets.widget_serialization)

        self.code = Code
        self.view = View


@functools.cache
def _classes() -> Any:
    return _Classes()


_shared: list[Any] = []


def _code() -> Any:
    """Return the model with the views' code, made anew when somebody has closed all widgets."""
    if not _shared or _shared[0].comm is None:
        _shared[:] = [_classes().code(texts=_texts())]
    return _shared[0]


@functools.cache
def _texts() -> dict[str, Any]:
    views = resources.files("jupyter_mgpu.widgets").joinpath("views")
    files = {file.name: file.read_text("utf-8") for file in views.iterdir() if _is_module(file)}
    files["notebook.js"] = _text("notebook.js")
    styles = views.joinpath("views.css").read_text("utf-8")
    return {"files": files, "styles": styles}


def _is_module(file: Any) -> bool:
    return Path(file.name).suffix == ".js"


def _text(name: str) -> str:
    return resources.files("jupyter_mgpu.widgets").joinpath(name).read_text("utf-8")
