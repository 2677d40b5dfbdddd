"""Who takes the events of a cell or call that runs on several ranks, or of a part of a loop."""

from collections.abc import Callable

from jupyter_mgpu.wire import Frame, Header

LATE = 32
"""So many ended cells still get what their threads send; one that made widgets always does."""

Listener = Callable[[Header, list[Frame]], bool]
"""Takes an event of its task; True when that was the last one."""


class Listeners:
    """The listeners of one pool, by the id of their task."""

    def __init__(self) -> None:
        self._listeners: dict[str, Listener] = {}
        self._late: dict[str, Listener] = {}
        self._with_widgets: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def open_ids(self) -> list[str]:
        """Return the ids of the tasks that have not ended."""
        return list(self._listeners)

    def add(self, task_id: str, listener: Listener) -> None:
        """Listen for the events of a task."""
        self._listeners[task_id] = listener

    def discard(self, task_id: str) -> None:
        """Forget a task that did not get as far as the owner."""
        self._listeners.pop(task_id, None)

    def handle(self, header: Header, frames: list[Frame]) -> bool:
        """Hand an event to its listener; False if nobody listens for its task."""
        task_id = header.get("task", "")
        if task_id in self._listeners:
            if header["op"] == "comm":
                self._with_widgets.add(task_id)
            if self._listeners[task_id](header, frames):
                self._keep_late(task_id)
        elif task_id in self._late:  # a thread that the cell left behind, or a widget of it
            self._late[task_id](header, frames)
        else:
            return False
        return True

    def _keep_late(self, task_id: str) -> None:
        self._late[task_id] = self._listeners.pop(task_id)
        others = [late for late in self._late if late not in self._with_widgets]
        for late in others[:-LATE]:
            self._late.pop(late)
