"""The output of one cell: takes what its ranks send, shows it at a rate that a browser can follow.

The path of a line: owner's thread -> `handle` -> the view's state -> the thread here, at most 20
times a second and within one budget for all ranks -> `Publisher` -> front end.
"""

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jupyter_mgpu.output.budget import Budget
from jupyter_mgpu.output.lane import make_lanes
from jupyter_mgpu.output.lanes import LanesView
from jupyter_mgpu.output.plain_views import StreamView, TextView
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.output.widget_relay import SendToRank, WidgetRelay

TICK_S = 0.05


class _View(Protocol):
    def text(self, rank: int, name: str, text: str, dropped: int, now: float) -> None: ...
    def show(self, rank: int, kind: str, content: dict[str, Any], now: float) -> None: ...
    def status(self, text: str) -> None: ...
    def publish(self, now: float, budget: Budget) -> bool: ...
    def finish(self, outcomes: Mapping[int, str], now: float) -> None: ...


class CellOutput:
    """What one cell shows. Every method may be called from any thread.

    Args:
        ranks: The ranks that run the cell.
        publisher: The cell, as `publisher.capture()` gave it on the cell's own thread.
        quiet: Show nothing; the log files have it.
        log_paths: Each rank's log file, named where lines are left out.
        labels: What each rank runs on, such as `GPU 3`.
        send: Sends a header and frames to a rank's engine, for widgets; without it they are shown
            but cannot talk back.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        publisher: Publisher,
        *,
        quiet: bool = False,
        log_paths: Mapping[int, str] | None = None,
        labels: Mapping[int, str] | None = None,
        send: SendToRank | None = None,
    ) -> None:
        lanes = make_lanes(ranks, labels or {}, log_paths or {})
        self._ranks = frozenset(ranks)
        self._is_quiet = quiet
        self._can_update = publisher.can_update
        self._widgets = WidgetRelay(publisher, send or (lambda *_: None))
        self._view = _view_of(lanes, publisher)
        self._lock = threading.Lock()
        self._budget = Budget(time.monotonic())
        self._thread: threading.Thread | None = None
        self._is_finished = False

    def handle(self, rank: int, message: Mapping[str, Any], frames: Sequence[Any] = ()) -> None:
        """Take an `output`, `display` or `comm` message of a rank; it never waits."""
        if self._is_quiet or rank not in self._ranks:
            return
        if message["op"] == "comm":
            self._widgets.handle(rank, message, frames)
            return
        now = time.monotonic()
        with self._lock:
            if message["op"] == "output":
                dropped = int(message.get("dropped", 0))
                self._view.text(rank, message["name"], message["text"], dropped, now)
            elif message["op"] == "display":
                self._view.show(rank, message["kind"], message["content"], now)
            self._start()

    def status(self, text: str) -> None:
        """Show one line on what the cell waits for; an empty one removes it."""
        if self._is_quiet:
            return
        with self._lock:
            if not self._is_finished:
                self._view.status(text)
                self._start()

    def _start(self) -> None:
        """Let the thread publish; it lives while there is something to publish."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mgpu-cell-output", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                self._budget.refill(now)
                has_more = False
                # A front end that went away is no reason to lose the next output.
                with contextlib.suppress(Exception):
                    has_more = self._view.publish(now, self._budget)
                if not has_more:
                    self._thread = None
                    return
            time.sleep(TICK_S)

    def finish(self, outcomes: Mapping[int, str] | None = None) -> None:
        """Bring the cell to its final state, the one that is saved.

        Called again it shows how ranks ended that were still stopping, where that can be shown.

        Args:
            outcomes: How ranks ended that did not end well, in a few words, such as
                `ValueError: no` or `interrupted`.
        """
        with self._lock:
            if self._is_finished and not self._can_update:
                return
            self._is_finished = True
            if not self._is_quiet:
                self._view.finish(outcomes or {}, time.monotonic())


def _view_of(lanes: Mapping[int, Any], publisher: Publisher) -> _View:
    if not publisher.can_update:
        return TextView(lanes, publisher)
    if len(lanes) == 1:
        return StreamView(next(iter(lanes.values())), publisher)
    return LanesView(lanes, publisher)
