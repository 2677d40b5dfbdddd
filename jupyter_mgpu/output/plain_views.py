"""How a cell on one rank looks (a plain stream), and any cell where nothing can be replaced."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from jupyter_mgpu.output import html
from jupyter_mgpu.output.budget import Budget
from jupyter_mgpu.output.lane import (
    BLANK,
    Lane,
    Slot,
    display_id_of,
    hidden_note,
    id_on_page,
    new_id,
    ranks_text,
)
from jupyter_mgpu.output.lanes import UPDATE_S, WELL
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.output.screen import Screen

NOTE_S = 1.0
STREAM_S = 0.05


class StreamView:
    """The page of a cell that runs on one rank: as if the kernel had run it.

    Args:
        lane: The rank's title and log; its screen is not used.
        publisher: Where it is shown.
    """

    def __init__(self, lane: Lane, publisher: Publisher) -> None:
        self._lane = lane
        self._publisher = publisher
        self._queue: deque[tuple[str, Any]] = deque()  # ("stdout", text), ("slot", Slot), ...
        self._named: dict[str, Slot] = {}
        self._status: Slot | None = None
        self._dropped = 0
        self._noted_at = -NOTE_S
        self._sent_at = 0.0

    def text(self, rank: int, name: str, text: str, dropped: int, now: float) -> None:  # noqa: ARG002 - same signature for all views
        """Take text of the rank."""
        self._dropped += dropped
        if text:
            self._note_dropped(now)
            if self._queue and self._queue[-1][0] == name:
                text = self._queue.pop()[1] + text
            self._queue.append((name, text))

    def _note_dropped(self, now: float) -> None:
        if self._dropped and now - self._noted_at >= NOTE_S:
            self._noted_at = now
            note = hidden_note(self._dropped, self._lane.log_path)
            self._dropped = 0
            self._queue.append(("stderr", f"{note}\n"))

    def show(self, rank: int, kind: str, content: dict[str, Any], now: float) -> None:  # noqa: ARG002 - as above
        """Take a display of the rank."""
        name = display_id_of(rank, content)
        if kind == "clear_output":
            self._queue.clear()
            self._named.clear()
            self._queue.append(("clear", bool(content.get("wait"))))
            if self._status is not None:
                self._status = None
        elif kind == "update_display_data":
            if name is not None:
                slot = self._named.get(name) or Slot(id_on_page(name), is_shown=True)
                self._place(slot, content, name)
        else:
            self._place(Slot(name or new_id()), content, name)

    def _place(self, slot: Slot, content: dict[str, Any], name: str | None) -> None:
        slot.fill(content["data"], content.get("metadata"))
        if name is not None:
            self._named[name] = slot
        if all(item is not slot for _, item in self._queue):
            self._queue.append(("slot", slot))

    def status(self, text: str) -> None:
        """Show one line on what the cell waits for; an empty one removes it."""
        if self._status is None:
            if not text:
                return
            self._status = Slot(new_id())
        data = {"text/html": html.header(text), "text/plain": text} if text else dict(BLANK)
        self._place(self._status, {"data": data}, None)

    def publish(self, now: float, budget: Budget) -> bool:
        """Send what is due and what the budget allows; tells whether more is left."""
        if now - self._sent_at < STREAM_S:
            return bool(self._queue)
        for _ in range(len(self._queue)):
            if not budget.allows():
                break
            kind, item = self._queue[0]
            self._queue.popleft()
            if kind == "slot" and item.is_shown and now - item.sent_at < UPDATE_S:
                self._queue.append((kind, item))
                continue
            self._send(kind, item, now)
            budget.spend(item.data if kind == "slot" else str(item))
            self._sent_at = now
        return bool(self._queue)

    def finish(self, outcomes: Mapping[int, str], now: float) -> None:  # noqa: ARG002 - one rank's outcome is the cell's
        """Send everything that is left."""
        self.status("")
        if self._dropped:
            self._noted_at = now - NOTE_S
            self._note_dropped(now)
        while self._queue:
            self._send(*self._queue.popleft(), now)

    def _send(self, kind: str, item: Any, now: float) -> None:
        if kind == "clear":
            self._publisher.clear(wait=item)
        elif kind == "slot":
            self._publisher.display(
                item.data, item.metadata, display_id=item.display_id, update=item.is_shown
            )
            item.is_shown, item.is_dirty, item.sent_at = True, False, now
        else:
            self._publisher.stream(kind, item)


class TextView:
    """The page of a cell where nothing can be replaced: a terminal; one line at a time.

    Args:
        lanes: The lanes by rank.
        publisher: Where it is printed.
    """

    def __init__(self, lanes: Mapping[int, Lane], publisher: Publisher) -> None:
        self._lanes = lanes
        self._publisher = publisher
        self._screens = {rank: Screen(2000) for rank in lanes}
        self._waiting: list[str] = []
        self._results: dict[int, str] = {}

    def _say(self, rank: int, line: str) -> None:
        self._waiting.append(f"[{rank}] {line}\n" if len(self._lanes) > 1 else f"{line}\n")

    def text(self, rank: int, name: str, text: str, dropped: int, now: float) -> None:  # noqa: ARG002 - same signature for all views
        """Take text of a rank; a bar shows when its line is finished."""
        if dropped:
            self._say(rank, hidden_note(dropped, self._lanes[rank].log_path))
        screen = self._screens[rank]
        screen.feed(text)
        for line in screen.take_complete():
            self._say(rank, line)

    def show(self, rank: int, kind: str, content: dict[str, Any], now: float) -> None:  # noqa: ARG002 - as above
        """Take a display of a rank; its text is printed."""
        text = content.get("data", {}).get("text/plain") if kind != "clear_output" else None
        if not isinstance(text, str):
            return
        if kind == "execute_result":
            self._results[rank] = text
        elif kind == "display_data":
            for line in text.splitlines():
                self._say(rank, line)

    def status(self, text: str) -> None:
        """Print one line on what the cell waits for."""
        if text:
            self._waiting.append(f"{text}\n")

    def publish(self, now: float, budget: Budget) -> bool:  # noqa: ARG002 - a terminal needs no budget
        """Print what has come."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._publisher.stream("stdout", "".join(waiting))
        return False

    def finish(self, outcomes: Mapping[int, str], now: float) -> None:
        """Print what is left: open lines, last expressions, how ranks ended."""
        for rank, screen in self._screens.items():
            for line in screen.lines():
                self._say(rank, line)
            screen.clear()
        groups: dict[str, list[int]] = {}
        for rank, text in sorted(self._results.items()):
            groups.setdefault(text, []).append(rank)
        for text, ranks in groups.items():
            who = f"{ranks_text(ranks)}: " if len(self._lanes) > 1 else ""
            self._waiting.append(f"{who}{text}\n")
        if len(self._lanes) > 1:
            for rank, outcome in outcomes.items():
                if outcome not in WELL:
                    self._say(rank, outcome)
        self.publish(now, Budget(now))
