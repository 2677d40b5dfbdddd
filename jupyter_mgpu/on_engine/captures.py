"""Lets `ipywidgets.Output` capture on an engine: `with out:`, `@out.capture()`, `interact`.

In a kernel the front end moves what a request prints into the widget. An engine's lines travel
apart from requests, so here the widget's own `outputs` take them.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

FLUSH_S = 0.05
MAX_CHARS = 100_000
MAX_OUTPUTS = 200
_OPEN = "_mgpu_captures"
_PATCHED = "_mgpu_captures"


def current() -> "Capture | None":
    """Return what captures the output of the calling thread, if anything does."""
    opened = getattr(threading.current_thread(), _OPEN, None)
    return opened[-1] if opened else None


class Capture:
    """Collects outputs into a widget; the widget changes at most 20 times a second.

    Args:
        widget: An `ipywidgets.Output`.
    """

    def __init__(self, widget: Any) -> None:
        self.widget = widget
        self._outputs: list[dict[str, Any]] = list(widget.outputs)
        self._is_clearing = False
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()

    def write(self, name: str, text: str) -> None:
        """Append text of a stream."""
        with self._lock:
            self._clear_now()
            last = self._outputs[-1] if self._outputs else {}
            if last.get("output_type") == "stream" and last["name"] == name:
                text = self._outputs.pop()["text"] + text
            text = _without_overwritten(text)[-MAX_CHARS:]
            self._add({"output_type": "stream", "name": name, "text": text})

    def show(self, content: dict[str, Any]) -> None:
        """Append a display."""
        with self._lock:
            self._clear_now()
            output = {"data": content["data"], "metadata": content.get("metadata", {})}
            self._add({"output_type": "display_data", **output})

    def fail(self, etype: Any, evalue: Any, lines: list[str]) -> None:
        """Append a traceback."""
        with self._lock:
            self._clear_now()
            error = {"ename": etype.__name__, "evalue": str(evalue), "traceback": lines}
            self._add({"output_type": "error", **error})

    def clear(self, *, wait: bool) -> None:
        """Remove everything, at once or when the next output comes."""
        with self._lock:
            self._is_clearing = True
            if not wait:
                self._clear_now()
                self._flush_soon()

    def _clear_now(self) -> None:
        if self._is_clearing:
            self._is_clearing = False
            self._outputs.clear()

    def _add(self, output: dict[str, Any]) -> None:
        self._outputs.append(output)
        del self._outputs[:-MAX_OUTPUTS]
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(FLUSH_S, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Let the widget show what has come."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self.widget.outputs = tuple(self._outputs)


def _without_overwritten(text: str) -> str:
    """Remove what a carriage return lets the rest of its line overwrite, as bars write it."""
    if "\r" not in text:
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    *done, last = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return "\n".join([*done, last + "\r" if lines[-1].endswith("\r") else last])


def install(is_relayed: Callable[[], bool], shell: Any) -> None:
    """Let the class `Output` of a loaded ipywidgets capture so; harmless when done before.

    Args:
        is_relayed: Tells whether the calling thread works for a task.
        shell: The IPython shell, which shows errors.
    """
    output = getattr(sys.modules.get("ipywidgets"), "Output", None)
    if output is None or hasattr(output, _PATCHED):
        return
    enter, leave = output.__enter__, output.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807 - becomes the class's method
        if not is_relayed():
            return enter(self)
        thread = threading.current_thread()
        opened = thread.__dict__.setdefault(_OPEN, [])
        nested = next((one for one in opened if one.widget is self), None)
        opened.append(nested or Capture(self))
        return None

    def __exit__(self: Any, etype: Any, evalue: Any, tb: Any) -> Any:  # noqa: N807 - as above
        capture = current()
        if capture is None or capture.widget is not self:
            return leave(self, etype, evalue, tb)
        # As in a kernel an error stays in the widget, but a Stop ends the cell.
        is_shown = etype is not None and issubclass(etype, Exception)
        try:
            if is_shown:
                shell.showtraceback((etype, evalue, tb), tb_offset=0)
        finally:
            threading.current_thread().__dict__[_OPEN].pop()
            capture.flush()
        return is_shown or None

    output.__enter__, output.__exit__ = __enter__, __exit__
    setattr(output, _PATCHED, True)
