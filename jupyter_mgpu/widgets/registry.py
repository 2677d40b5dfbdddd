"""The live views of this kernel, and the one thread that keeps them up to date."""

import logging
import threading
import time
from collections import OrderedDict
from typing import Any

from jupyter_mgpu.output.budget import Budget
from jupyter_mgpu.widgets.live_view import LiveView
from jupyter_mgpu.widgets.telemetry import telemetry

_log = logging.getLogger(__name__)

TICK_S = 0.25
MAX_ENDED = 50
"""So many views that have ended are kept for pages that are loaded again."""
MAX_LIVE = 200
"""Beyond that the oldest ones are frozen."""


class Views:
    """All views of a kernel, by their ids. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._live: OrderedDict[str, LiveView] = OrderedDict()
        self._ended: OrderedDict[str, LiveView] = OrderedDict()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()  # views whose fault was told

    def add(self, view: LiveView) -> None:
        """Keep a view up to date from now on."""
        with self._lock:
            self._live[view.id] = view
            surplus = list(self._live.values())[:-MAX_LIVE]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mgpu-views", daemon=True)
                self._thread.start()
        for old in surplus:
            old.freeze()

    def find(self, view_id: str) -> LiveView | None:
        """Return a view that lives, or has ended not long ago."""
        with self._lock:
            return self._live.get(view_id) or self._ended.get(view_id)

    def settle(self, *_: Any) -> None:
        """Freeze at once what has ended: the saved notebook is to have it."""
        for view in self._views():
            if view.source.has_ended():
                view.freeze()

    def _views(self) -> list[LiveView]:
        with self._lock:
            return list(self._live.values())

    def _run(self) -> None:
        budget = Budget(time.monotonic())
        while True:
            now_s = time.monotonic()
            budget.refill(now_s)
            for view in sorted(self._views(), key=lambda view: view.sent_s):
                self._update(view, now_s, budget)
            telemetry.rest()
            if not self._forget_ended():
                return
            time.sleep(TICK_S)  # the pace of the views, not a wait for anything

    def _update(self, view: LiveView, now_s: float, budget: Budget) -> None:
        try:
            view.update(now_s, budget)
        except Exception as error:  # noqa: BLE001 - one view must not end all others
            if view.id not in self._told:
                self._told.add(view.id)
                _log.warning("A view could not be updated: %r.", error)

    def _forget_ended(self) -> bool:
        """Move what has ended aside; False when nothing is left, and the thread ends."""
        with self._lock:
            for view_id, view in list(self._live.items()):
                if view.is_final:
                    self._ended[view_id] = self._live.pop(view_id)
            surplus = [self._ended.popitem(last=False)[1] for _ in range(self._num_surplus())]
            is_needed = bool(self._live)
            if not is_needed:
                self._thread = None
        for view in surplus:
            view.close()
        return is_needed

    def _num_surplus(self) -> int:
        return max(len(self._ended) - MAX_ENDED, 0)


views = Views()
"""Those of this kernel."""
