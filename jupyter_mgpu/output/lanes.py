"""How a cell on several ranks looks: a foldable lane of text per rank, figures with a header.

Everything on the page is a `Slot`: shown once, then replaced by its display id. What a rank clears
is its own slots, which its next figures fill again, so that an animation stays in its place.
"""

import json
from collections.abc import Mapping
from typing import Any

from jupyter_mgpu.output import html
from jupyter_mgpu.output.budget import BYTES_PER_S, Budget
from jupyter_mgpu.output.lane import (
    BLANK,
    Lane,
    Slot,
    display_id_of,
    id_on_page,
    new_id,
    ranks_text,
)
from jupyter_mgpu.output.publisher import Publisher

LANE_CHARS = 40_000
UPDATE_S = 0.2
MIN_LIVE_CHARS = 1_500
UPDATES_PER_S_UNDER_LOAD = 2.0
WELL = ("", "ok", "finished")
"""Outcomes that need no word in a lane's title."""


class LanesView:
    """The page of one cell that runs on several ranks.

    Args:
        lanes: The lanes by rank.
        publisher: Where it is shown.
    """

    def __init__(self, lanes: Mapping[int, Lane], publisher: Publisher) -> None:
        self._lanes = lanes
        self._publisher = publisher
        self._page: list[Slot] = []  # in the order of the page
        self._named: dict[str, Slot] = {}
        self._figures: dict[int, list[tuple[Slot, Slot]]] = {rank: [] for rank in lanes}
        self._num_places = dict.fromkeys(lanes, 0)  # for figures, filled and free
        self._free: dict[int, list[tuple[Slot, Slot]]] = {rank: [] for rank in lanes}
        self._clearing: set[int] = set()
        self._results: dict[int, dict[str, Any]] = {}
        self._dirty: set[int] = set()
        self._status: Slot | None = None

    # --- what comes in -----------------------------------------------------------------

    def text(self, rank: int, name: str, text: str, dropped: int, now: float) -> None:  # noqa: ARG002 - same signature for all views
        """Take text of a rank."""
        self._clear_now(rank)
        lane = self._lanes[rank]
        lane.dropped += dropped
        lane.screen.feed(text)
        self._dirty.add(rank)

    def show(self, rank: int, kind: str, content: dict[str, Any], now: float) -> None:  # noqa: ARG002 - as above
        """Take a display of a rank."""
        if kind == "clear_output":
            self._clearing.add(rank)
            if not content.get("wait"):
                self._clear_now(rank)
        elif kind == "execute_result":
            self._results[rank] = content
            if len(self._results) == len(self._lanes):
                self._show_results()
        elif kind == "update_display_data":
            self._update(rank, content)
        else:
            self._clear_now(rank)
            if rank in self._dirty:
                self._make_lanes()  # what was printed before stands above
            title = self._lanes[rank].title
            self._show_pair(rank, title, content, display_id_of(rank, content))

    def _update(self, rank: int, content: dict[str, Any]) -> None:
        name = display_id_of(rank, content)
        if name is None:
            return
        slot = self._named.get(name)
        if slot is None:
            # Shown by an earlier cell; the front end knows the id.
            slot = self._named[name] = Slot(id_on_page(name), is_shown=True)
            self._page.append(slot)
        slot.fill(content["data"], content.get("metadata"))

    def _show_pair(
        self, rank: int, title: str, content: dict[str, Any], name: str | None = None
    ) -> None:
        """Show something with its header, in a place that the rank has free if there is one."""
        if not self._free[rank]:
            self._make_places(rank)
        header, figure = self._free[rank].pop(0)
        if name is not None:
            self._named[name] = figure
            figure.take_name(name)
        self._fill(rank, title, content, header, figure)

    def _fill(
        self, rank: int, title: str, content: dict[str, Any], header: Slot, figure: Slot
    ) -> None:
        header.fill({"text/html": html.header(title), "text/plain": f"{title}:"})
        figure.fill(content["data"], content.get("metadata"))
        self._figures[rank].append((header, figure))

    def _make_places(self, rank: int) -> None:
        """Make a place for a rank's next figure, below those of the ranks before it.

        The others' figures are still to come, and nothing on a page can be moved.
        """
        self._num_places[rank] += 1
        for other in sorted(self._lanes):
            if other == rank or (other < rank and self._num_places[other] < self._num_places[rank]):
                self._num_places[other] += other != rank
                place = Slot(new_id()), Slot(new_id())
                self._page += place
                self._free[other].append(place)

    def _clear_now(self, rank: int) -> None:
        if rank not in self._clearing:
            return
        self._clearing.discard(rank)
        for pair in self._figures[rank]:
            for slot in pair:
                slot.fill(dict(BLANK))
        self._free[rank] += self._figures[rank]
        self._figures[rank] = []
        lane = self._lanes[rank]
        if lane.slot is not None or rank in self._dirty:
            lane.screen.clear()
            lane.dropped = 0
            self._dirty.add(rank)

    def _show_results(self) -> None:
        """Show the last expressions; equal ones once, for all the ranks that have it."""
        self._make_lanes()
        groups: dict[str, list[int]] = {}
        for rank in sorted(self._results):
            key = json.dumps(self._results[rank].get("data"), sort_keys=True, default=str)
            groups.setdefault(key, []).append(rank)
        for ranks in groups.values():
            content = self._results[ranks[0]]
            title = self._lanes[ranks[0]].title if len(ranks) == 1 else ranks_text(ranks)
            text = content["data"].get("text/plain")
            if set(content["data"]) == {"text/plain"} and isinstance(text, str):
                slot = Slot(new_id())
                joint = "\n" if "\n" in text else " "
                slot.fill({
                    "text/html": html.labelled_text(f"{title}: Out", text),
                    "text/plain": f"{title}:{joint}{text}",
                })  # fmt: skip
                self._page.append(slot)
            else:
                header, figure = Slot(new_id()), Slot(new_id())
                self._page += [header, figure]
                self._fill(ranks[0], title, content, header, figure)
        self._results = {}

    def status(self, text: str) -> None:
        """Show one line on what the cell waits for; an empty one removes it."""
        if self._status is None:
            if not text:
                return
            self._status = Slot(new_id())
            self._page.append(self._status)
        self._status.fill({"text/html": html.header(text), "text/plain": text} if text else BLANK)

    # --- what goes out -----------------------------------------------------------------

    def publish(self, now: float, budget: Budget) -> bool:
        """Send what is due and what the budget allows; tells whether more is left."""
        self._make_lanes()
        self._draw(now, self._live_chars())
        pending = [slot for slot in self._page if slot.is_dirty]
        # What is new first and in order; of the rest, what waits longest.
        pending.sort(key=lambda slot: slot.sent_at if slot.is_shown else -1.0)
        for slot in pending:
            if not budget.allows():
                break
            if slot.is_shown and now - slot.sent_at < UPDATE_S:
                continue
            self._send(slot, now)
            budget.spend(slot.data)
        return bool(self._dirty) or any(slot.is_dirty for slot in self._page)

    def finish(self, outcomes: Mapping[int, str], now: float) -> None:
        """Bring everything to its final state."""
        for rank in list(self._clearing):
            self._clear_now(rank)
        for rank, lane in self._lanes.items():
            outcome = outcomes.get(rank, "")
            shown = "" if outcome in WELL else outcome
            if shown != lane.outcome:
                lane.outcome = shown
                if lane.slot is not None or rank in self._dirty:
                    self._dirty.add(rank)
        if self._results:
            self._show_results()
        self.status("")
        self._make_lanes()
        for rank in self._lanes:  # the live ones may have been shortened
            if self._lanes[rank].slot is not None:
                self._dirty.add(rank)
        self._draw(now + 2 * UPDATE_S, LANE_CHARS)
        for slot in self._page:
            if slot.is_dirty:
                self._send(slot, now)

    def _make_lanes(self) -> None:
        """Give each rank that has printed its place on the page, below the ranks before it."""
        new = [rank for rank in self._dirty if self._lanes[rank].slot is None]
        for rank in sorted(self._lanes):
            lane = self._lanes[rank]
            if lane.slot is None and rank <= max(new, default=-1):
                self._make_switches()
                lane.slot = Slot(new_id())
                self._page.append(lane.slot)

    def _make_switches(self) -> None:
        """Put what folds the lanes above the first one, once: an update would forget its state."""
        if all(lane.slot is None for lane in self._lanes.values()):
            switches = {lane.key: lane.title for lane in self._lanes.values()}
            slot = Slot(new_id())
            slot.fill({**BLANK, "text/html": html.switches(switches)})
            self._page.append(slot)

    def _live_chars(self) -> int:
        """How much of each lane a live update may hold, so that all of them stay live."""
        active = max(len(self._dirty), 1)
        # Each character travels twice, as HTML and as plain text.
        share = BYTES_PER_S / 2 / UPDATES_PER_S_UNDER_LOAD / active
        return int(min(max(share, MIN_LIVE_CHARS), LANE_CHARS))

    def _draw(self, now: float, max_chars: int) -> None:
        for rank in sorted(self._dirty):
            slot = self._lanes[rank].slot
            if slot is None or now - slot.sent_at < UPDATE_S:
                continue
            data = self._lanes[rank].render(max_chars)
            if data != slot.data:
                slot.fill(data)
            self._dirty.discard(rank)

    def _send(self, slot: Slot, now: float) -> None:
        self._publisher.display(
            slot.data, slot.metadata, display_id=slot.display_id, update=slot.is_shown
        )
        slot.is_shown, slot.is_dirty, slot.sent_at = True, False, now
