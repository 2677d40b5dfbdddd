"""One view in one cell: shown once, kept up to date while somebody looks, and frozen at its end."""

import contextlib
import threading
import uuid
from collections.abc import Iterable
from typing import Any, Protocol

from jupyter_mgpu.output.budget import Budget
from jupyter_mgpu.output.publisher import Bundle, Publisher, capture
from jupyter_mgpu.widgets.curves import MAX_POINTS
from jupyter_mgpu.widgets.sources import LIVE_POINTS, Source
from jupyter_mgpu.widgets.states import State
from jupyter_mgpu.widgets.states.parts import without_clocks
from jupyter_mgpu.widgets.static import static_bundle

UPDATE_S = 0.5
SIGN_OF_LIFE_S = 5.0
"""So often a state is sent that has not changed: a view wonders about silence."""
SAVE_S = 10.0
"""So often what a saved notebook would hold is renewed."""


FIRST_SAVE_S = 2.0
"""The first time earlier: when a view is shown first, the monitor may not have looked yet."""


class Host(Protocol):
    """What draws a view in a page."""

    def is_watched(self, now_s: float) -> bool:
        """Whether somebody may be looking."""

    def send_state(self, state: State) -> None:
        """Draw a state."""

    def send(self, message: dict[str, Any]) -> None:
        """Send anything else."""

    def close(self) -> None:
        """Let go of the page."""


class LiveView:
    """A view's hosts, and what it has sent them. Every method may be called from any thread.

    Args:
        source: What it shows.
        place: The cell.

    Attributes:
        id: Names the view in the notebook; a page that is loaded again asks for it.
        is_final: Whether it shows its last state.
        sent_s: When it has last sent a state, on the monotonic clock.
    """

    def __init__(self, source: Source, place: Publisher) -> None:
        self.id = uuid.uuid4().hex[:16]
        self.source = source
        self.is_final = False
        self._place = place
        self._hosts: list[Host] = []
        self._extra: Bundle = {}
        self._lock = threading.RLock()
        self._sent: State | None = None
        self.sent_s = self._saved_s = 0.0
        self._saved: State | None = None
        self._has_live_host = False

    def show(self, now_s: float, widget: Host | None = None, widget_bundle: Bundle = {}) -> None:  # noqa: B006 - never changed
        """Show it in its cell.

        Args:
            now_s: The time on the monotonic clock.
            widget: Its host in front ends that show widgets.
            widget_bundle: What makes such a front end show it.
        """
        with self._lock:
            if widget is not None:
                self._hosts.append(widget)
            self._extra = widget_bundle
            state = self._state(LIVE_POINTS)
            self.is_final = state["final"]
            self._saved, self._saved_s = without_clocks(state), now_s - SAVE_S + FIRST_SAVE_S
            self._publish(state, update=False)

    def _state(self, limit: int) -> State:
        state = self.source.state(limit)
        return {**state, "id": self.id, "final": self.is_final or state["final"]}

    def _publish(self, state: State, *, update: bool) -> None:
        extra = {} if state["final"] else self._extra
        bundle = {**static_bundle(state), **extra}
        place = self._place_for_updates() if update else self._place
        place.display(bundle, display_id=f"mgpu-view-{self.id}", update=update)

    def _place_for_updates(self) -> Publisher:
        """Return the cell that runs now: nbclient hears nothing of cells that have ended.

        Every front end finds what is updated by its display id.
        """
        here = capture()
        return here if here.can_update else self._place

    def join(self, host: Host) -> None:
        """Take a page that has asked for this view, and send it the state."""
        with self._lock:
            self._has_live_host = True
            for other in self._hosts:
                other.send({"ping": True})
            self._hosts.append(host)
            state = self._state(MAX_POINTS if self.is_final else LIVE_POINTS)
            host.send_state(state)
            if self.is_final:
                self._save_by(state, [host])

    def save_by(self, host: Host) -> None:
        """Have a page renew what its notebook holds, if this is the last state."""
        with self._lock:
            if self.is_final:
                self._save_by(self._state(MAX_POINTS), [host])

    def leave(self, host: Host) -> None:
        """Forget a page."""
        with self._lock:
            if host in self._hosts:
                self._hosts.remove(host)

    def heard(self) -> None:
        """Note that a page draws it: what is saved is renewed through the page from now on."""
        self._has_live_host = True

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message to all pages."""
        with self._lock:
            for host in self._hosts:
                host.send(message)

    def update(self, now_s: float, budget: Budget) -> None:
        """Send what has changed, if it is time for that and somebody looks."""
        with self._lock:
            if self.is_final:
                return
            if self.source.has_ended():
                self.freeze()
                return
            watching = [host for host in self._hosts if host.is_watched(now_s)]
            if watching and now_s - self.sent_s >= UPDATE_S and budget.allows():
                self._send(watching, now_s, budget)
            if now_s - self._saved_s >= SAVE_S and budget.allows():
                self._save_if_changed(now_s, budget)

    def _send(self, watching: list[Host], now_s: float, budget: Budget) -> None:
        state = self._state(LIVE_POINTS)
        essence = without_clocks(state)
        if essence == self._sent and now_s - self.sent_s < SIGN_OF_LIFE_S:
            return
        self._sent, self.sent_s = essence, now_s
        for host in watching:
            host.send_state(state)
            budget.spend(state)

    def _save_if_changed(self, now_s: float, budget: Budget) -> None:
        self._saved_s = now_s
        state = self._state(LIVE_POINTS)
        essence = without_clocks(state)
        if essence != self._saved:
            self._saved = essence
            budget.spend(state)
            if self._has_live_host:
                self._save_by(state, [host for host in self._hosts if host.is_watched(now_s)])
            else:  # an update would draw a widget anew, which loses focus and place
                self._publish(state, update=True)

    @staticmethod
    def _save_by(state: State, hosts: Iterable[Host]) -> None:
        """Have the pages that draw the view renew what their notebook holds."""
        for host in hosts:
            host.send({"bundle": static_bundle(state)})

    def freeze(self) -> None:
        """Show the last state, in a way that needs neither kernel nor script."""
        with self._lock:
            if self.is_final:
                return
            self.is_final = True
            state = self._state(MAX_POINTS)
            for host in self._hosts:
                host.send_state(state)
            self._save_by(state, self._hosts)
            with contextlib.suppress(Exception):  # a front end that went away
                self._publish(state, update=True)

    def close(self) -> None:
        """Let go of all pages."""
        with self._lock:
            hosts, self._hosts = self._hosts, []
        for host in hosts:
            host.close()
