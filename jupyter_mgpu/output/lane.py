"""The parts of a cell's page: slots that can be replaced, and the lane of text of one rank."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.output import html
from jupyter_mgpu.output.publisher import Bundle
from jupyter_mgpu.output.screen import Screen

LANE_LINES = 200
_ids: dict[str, str] = {}
"""Displays that were given a place which was on the page already: its ids by their names."""
BLANK: Bundle = {"text/plain": ""}


def ranks_text(ranks: Iterable[int]) -> str:
    """Name ranks as people do: `rank 2`, `ranks 0-3, 5`."""
    ordered = sorted(set(ranks))
    spans: list[tuple[int, int]] = []
    for rank in ordered:
        if spans and spans[-1][1] == rank - 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    listed = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'s' if len(ordered) > 1 else ''} {listed}"


@dataclass(eq=False, slots=True)
class Slot:
    """One output of the cell."""

    display_id: str
    data: Bundle = field(default_factory=lambda: dict(BLANK))
    metadata: dict[str, Any] = field(default_factory=dict)
    is_shown: bool = False
    is_dirty: bool = True
    sent_at: float = -1.0

    def fill(self, data: Bundle, metadata: dict[str, Any] | None = None) -> None:
        """Give it something else to show."""
        self.data, self.metadata, self.is_dirty = data, metadata or {}, True

    def take_name(self, name: str) -> None:
        """Let later cells find it by a rank's name for it."""
        if self.is_shown:
            _ids[name] = self.display_id
        else:
            _ids.pop(name, None)
            self.display_id = name


@dataclass(eq=False, slots=True)
class Lane:
    """What one rank printed."""

    rank: int
    title: str
    log_path: str
    key: str = field(default_factory=lambda: new_id())
    screen: Screen = field(default_factory=lambda: Screen(LANE_LINES))
    dropped: int = 0
    outcome: str = ""
    slot: Slot | None = None

    def render(self, max_chars: int) -> Bundle:
        """Draw the last lines that fit."""
        lines = self.screen.lines()
        while lines and not lines[-1].strip():
            lines.pop()  # where a bar has been
        shown: list[str] = []
        left = max_chars
        for line in reversed(lines[-LANE_LINES:]):
            left -= len(line) + 4
            if left < 0 and shown:
                break
            shown.append(line if left >= 0 else "..." + line[left:])
        shown.reverse()
        if not (lines or self.dropped or self.outcome):
            return dict(BLANK)
        hidden = self.dropped + self.screen.dropped + len(lines) - len(shown)
        note = hidden_note(hidden, self.log_path)
        plain = [html.strip_escapes(line) for line in shown]
        if note:
            plain.insert(0, note)
        if self.outcome:
            plain.append(self.outcome)
        return {
            "text/html": html.lane(
                self.title, shown, key=self.key, note=note, outcome=self.outcome
            ),
            "text/plain": "\n".join(f"[{self.rank}] {line}" for line in plain),
        }


def hidden_note(lines: int, log_path: str) -> str:
    """Say how many lines are not shown, and where they are."""
    if not lines:
        return ""
    where = f"; all of it is in {log_path}" if log_path else ""
    return f"... {lines:,} earlier line{'' if lines == 1 else 's'} not shown{where}"


def display_id_of(rank: int, content: Mapping[str, Any]) -> str | None:
    """Return the front end's name for a display that a rank named; ranks must not share one."""
    name = content.get("transient", {}).get("display_id")
    return None if name is None else f"mgpu-{rank}-{name}"


def id_on_page(name: str) -> str:
    """Return the display id under which the front end knows what a rank has shown by a name."""
    return _ids.get(name, name)


def new_id() -> str:
    """Return a display id that no other cell has."""
    return f"mgpu-{uuid.uuid4().hex}"


def make_lanes(
    ranks: Sequence[int], labels: Mapping[int, str], log_paths: Mapping[int, str]
) -> dict[int, Lane]:
    """Make an empty lane for each rank."""
    return {
        rank: Lane(rank, _title(rank, labels.get(rank, "")), str(log_paths.get(rank, "")))
        for rank in ranks
    }


def _title(rank: int, label: str) -> str:
    return f"rank {rank} ({label})" if label else f"rank {rank}"
