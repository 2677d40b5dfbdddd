"""Shows a source in the cell that runs now, with all the hosts that its front end may have."""

import contextlib
import time
from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.output import publisher
from jupyter_mgpu.output.publisher import Publisher, current_shell
from jupyter_mgpu.widgets.comm_host import TARGET, CommHost
from jupyter_mgpu.widgets.live_view import LiveView
from jupyter_mgpu.widgets.registry import views
from jupyter_mgpu.widgets.sources import LIVE_POINTS, Source


def show(source: Source, place: Publisher | None = None) -> LiveView:
    """Show a source, live until it ends.

    Args:
        source: What is to be seen.
        place: The cell; the one that runs now by default.
    """
    place = place or publisher.capture()
    view = LiveView(source, place)
    widget: Any = None
    if place.can_update and not source.has_ended() and has_reader():
        # Without widget libraries, or where one does not work, the other hosts are enough.
        with contextlib.suppress(Exception):
            from jupyter_mgpu.widgets.widget_host import WidgetHost

            widget = WidgetHost(view, {**source.state(LIVE_POINTS), "id": view.id}, act)
    view.show(time.monotonic(), widget, widget.bundle if widget is not None else {})
    if place.can_update and not view.is_final:
        views.add(view)
    return view


def has_reader() -> bool:
    """Tell whether a person runs the cell: then its front end lets code ask for input.

    A notebook that is executed by a program (nbclient, papermill) has nobody to press buttons, and
    would keep the widgets' models instead of what is to be read.
    """
    kernel = getattr(current_shell(), "kernel", None)
    if kernel is None:
        return False
    return bool(kernel.get_parent().get("content", {}).get("allow_stdin"))


def act(view: LiveView, data: dict[str, Any]) -> None:
    """Do what a button asks for, and tell all pages how that went."""
    action = {name: data[name] for name in data if name not in ("page", "visible")}
    try:
        words, is_done = view.source.act(action), True
    except (MgpuError, ValueError, KeyError, TypeError) as error:
        words, is_done = str(error), False
    view.tell({"done": {**action, "ok": is_done, "words": words}})


def listen(kernel: Any) -> None:
    """Answer pages that ask for views by their ids."""
    kernel.comm_manager.register_target(TARGET, _on_open)


def _on_open(comm: Any, message: dict[str, Any]) -> None:
    view = views.find(str(message["content"]["data"].get("id", "")))
    if view is None:
        comm.send({"gone": True})
        comm.close()
        return
    view.join(CommHost(comm, view, act))
