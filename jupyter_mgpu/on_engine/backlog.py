"""What one task has written and not yet sent: bounded in memory, limited in rate.

Text passes at 400 lines and 64 KiB a second; a burst waits its turn, and of a flood the newest
part is kept and the rest counted, because a person reads the end and the log file has it all.
A progress bar's states on one line collapse to the last one.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.on_engine.pending_text import Text

LINES_PER_S = 400
CHARS_PER_S = 64 * 1024
SHOWN_PER_S = 20
MAX_LINES = 2000
MAX_CHARS = 256 * 1024
MAX_SHOWN = 200
MAX_SHOWN_CHARS = 32 * 2**20
TICK_S = 0.05
"""One message per tick: 20 messages a second."""
MAX_SEGMENTS = 4
"""More changes between stdout and stderr than this in one tick are sorted by stream."""

Header = dict[str, Any]
Message = tuple[Header, list[Any]]


@dataclass(slots=True)
class Allowance:
    """A token bucket that holds at most one second's worth; it may go into debt."""

    per_s: float
    left: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.per_s

    def refill(self, now: float) -> None:
        """Add what the time since the last call is worth."""
        self.left = min(self.per_s, self.left + (now - self.at) * self.per_s)
        self.at = now


class Backlog:
    """The waiting output of one task, in order: text, displays, messages of its widgets."""

    def __init__(self, task: str, rank: int) -> None:
        self.task = task
        self._rank = rank
        self._entries: deque[Text | Message] = deque()
        self._dropped = 0
        self._next_at = 0.0
        self._lines = Allowance(LINES_PER_S)
        self._chars = Allowance(CHARS_PER_S)
        self._shown = Allowance(SHOWN_PER_S)

    def __bool__(self) -> bool:
        return bool(self._entries or self._dropped)

    def add_text(self, name: str, text: str) -> None:
        """Append text of a stream; never blocks, never grows beyond the bounds."""
        if len(text) > MAX_CHARS:
            cut = text.count("\n", 0, len(text) - MAX_CHARS)
            self._dropped += max(cut, 1)
            text = text[-MAX_CHARS:]
        last = self._entries[-1] if self._entries else None
        if not isinstance(last, Text) or last.name != name:
            last = Text(name)
            self._entries.append(last)
            self._join_segments()
        last = self._entries[-1]
        if isinstance(last, Text):
            last.add(text)
        self._bound_text()

    def _join_segments(self) -> None:
        """Sort a long row of changes between the streams by stream, so that it stays short."""
        if len(self._entries) <= 2 * MAX_SEGMENTS:
            return
        tail = [e for e in list(self._entries)[-2 * MAX_SEGMENTS :] if isinstance(e, Text)]
        if len(tail) < 2 * MAX_SEGMENTS:
            return
        newest = tail[-1]
        joined: dict[str, Text] = {}
        for entry in tail[:-1]:
            into = joined.setdefault(entry.name, Text(entry.name))
            into.add("".join(entry.chunks) + entry.open_line())
        for _ in tail:
            self._entries.pop()
        order = sorted(joined.values(), key=lambda entry: entry.name == newest.name)
        self._entries.extend(order)
        if order[-1].name != newest.name:
            self._entries.append(newest)

    def _bound_text(self) -> None:
        texts = [entry for entry in self._entries if isinstance(entry, Text)]
        lines = sum(entry.lines for entry in texts) - MAX_LINES
        chars = sum(entry.size() for entry in texts) - MAX_CHARS
        for entry in texts:
            if lines <= 0 and chars <= 0:
                return
            lines_before, size_before = entry.lines, entry.size()
            self._dropped += entry.drop(lines, chars)
            lines -= lines_before - entry.lines
            chars -= size_before - entry.size()

    def note_dropped(self, lines: int) -> None:
        """Count lines that were dropped before they came here."""
        self._dropped += lines

    def add_message(self, header: Header, frames: list[Any]) -> None:
        """Append a display or a widget's message, merged with what it replaces."""
        if header["op"] == "display" and self._replaces(header):
            return
        if header["op"] == "comm" and not frames and self._joins(header):
            return
        self._entries.append((header, frames))
        self._bound_shown()

    def _replaces(self, header: Header) -> bool:
        """Forget what this message makes invisible; True if it went in another's place."""
        kind = header["kind"]
        if kind == "clear_output":
            kept = [e for e in self._entries if not isinstance(e, Text) and e[0]["op"] == "comm"]
            self._entries = deque(kept)
            self._dropped = 0
            return False
        if kind != "update_display_data":
            return False
        display_id = header["content"].get("transient", {}).get("display_id")
        for index, entry in enumerate(self._entries):
            if isinstance(entry, Text) or entry[0]["op"] != "display":
                continue
            content = entry[0]["content"]
            if content.get("transient", {}).get("display_id") == display_id:
                kind = entry[0]["kind"]
                self._entries[index] = ({**header, "kind": kind}, entry[1])
                return True
        return False

    def _joins(self, header: Header) -> bool:
        """Add a widget's new state to one that still waits, so that a fast loop sends the last."""
        content = header["content"]
        if header["msg_type"] != "comm_msg" or content["data"].get("method") != "update":
            return False
        for entry in reversed(self._entries):
            if isinstance(entry, Text) or entry[0]["op"] != "comm":
                continue
            waiting, frames = entry
            if waiting["content"]["comm_id"] != content["comm_id"]:
                continue
            data = waiting["content"]["data"]
            if frames or waiting["msg_type"] != "comm_msg" or data.get("method") != "update":
                return False
            data["state"] = {**data.get("state", {}), **content["data"].get("state", {})}
            return True
        return False

    def _bound_shown(self) -> None:
        shown = [e for e in self._entries if not isinstance(e, Text) and e[0]["op"] == "display"]
        if len(shown) <= 1:
            return
        size = sum(_size(entry) for entry in shown)
        while len(shown) > 1 and (len(shown) > MAX_SHOWN or size > MAX_SHOWN_CHARS):
            oldest = shown.pop(0)
            size -= _size(oldest)
            self._entries.remove(oldest)
            self._dropped += 1

    def take(self, now: float, *, everything: bool = False) -> list[Message]:
        """Remove and return what may be sent now, or all of it."""
        if not self:
            return []
        due = self._next_at
        if now < due and not everything:
            return []
        for allowance in (self._lines, self._chars, self._shown):
            allowance.refill(now)
        messages: list[Message] = []
        while self._entries:
            first = self._entries[0]
            if isinstance(first, Text):
                if not self._take_text(first, messages, everything=everything):
                    break
            elif not everything and self._shown.left <= 0:
                break
            else:
                self._shown.left -= first[0]["op"] == "display"
                messages.append(first)
            self._entries.popleft()
        if self._dropped and not self._entries:
            self._append(messages, "stdout", "")
        texts = sum(header["op"] == "output" for header, _ in messages)
        self._next_at = now + TICK_S * max(texts, 1)
        return messages

    def _take_text(self, entry: Text, messages: list[Message], *, everything: bool) -> bool:
        """Take what passes of one text; True if that was all of it."""
        unlimited = float(2**40)
        lines = unlimited if everything else self._lines.left
        chars = unlimited if everything else self._chars.left
        text = entry.take(lines, chars)
        if text:
            self._lines.left -= text.count("\n")
            self._chars.left -= len(text)
            self._append(messages, entry.name, text)
        return entry.size() == 0

    def _append(self, messages: list[Message], name: str, text: str) -> None:
        header = {
            "op": "output",
            "task": self.task,
            "rank": self._rank,
            "name": name,
            "text": text,
            "dropped": self._dropped,
        }
        self._dropped = 0
        messages.append((header, []))


def _size(entry: Message) -> int:
    return sum(len(v) for v in entry[0]["content"].get("data", {}).values() if isinstance(v, str))
