"""Text that waits to be sent: a progress bar's states on one line collapse to the last one."""

import re
from collections import deque

_MOVES = re.compile(r"\x1b\[[0-9;]*[A-HJf]")
"""Escape sequences that move the cursor to another line."""


class Text:
    """Consecutive text of one stream; its open line is kept apart so that bars can collapse."""

    __slots__ = ("chars", "chunks", "column", "head", "lines", "name", "over")

    def __init__(self, name: str) -> None:
        self.name = name
        self.chunks: deque[str] = deque()
        self.lines = 0
        self.chars = 0
        self.head = ""  # the open line, up to its first carriage return
        self.over: str | None = None  # what has been written over it since
        self.column = 0

    def add(self, text: str) -> None:
        """Append text as a terminal would show it."""
        if "\x1b[" in text and _MOVES.search(text):
            # Bars below each other: what follows depends on where the cursor is now.
            self._close_line(self.open_line() + text)
            self.head, self.over, self.column = "", None, 0
        elif "\r" not in text and self.over is None:
            start = text.rfind("\n") + 1
            if start:
                self._close_line(self.head + text[:start])
                self.head = text[start:]
            else:
                self.head += text
        else:
            *complete, last = text.split("\n")
            for piece in complete:
                self._overwrite(piece)
                self._close_line(self.open_line() + "\n")
                self.head, self.over, self.column = "", None, 0
            self._overwrite(last)

    def _close_line(self, chunk: str) -> None:
        self.chunks.append(chunk)
        self.lines += chunk.count("\n")
        self.chars += len(chunk)

    def _overwrite(self, piece: str) -> None:
        first, *rest = piece.split("\r")
        if self.over is None:
            self.head += first
        else:
            self._put(first)
        for part in rest:
            if self.over is None or (part and "\x1b" in self.over + part):
                self.over = ""  # with escapes in it, columns cannot be counted
            self.column = 0
            self._put(part)

    def _put(self, part: str) -> None:
        over = self.over or ""
        self.over = over[: self.column] + part + over[self.column + len(part) :]
        self.column += len(part)

    def open_line(self) -> str:
        """Return the unfinished line, such that more text can follow it."""
        if self.over is None:
            return self.head
        line = self.head + "\r" + self.over
        if self.column < len(self.over):
            line += "\r" + self.over[: self.column]
        return line

    def size(self) -> int:
        """Return how many characters wait."""
        return self.chars + len(self.head) + len(self.over or "")

    def take(self, lines: float, chars: float) -> str:
        """Remove and return the oldest text, at most so much of it."""
        taken: list[str] = []
        while self.chunks and lines >= 1 and chars >= 1:
            chunk = self.chunks.popleft()
            cut = _cut_after(chunk, int(lines), int(chars))
            if cut < len(chunk):
                self.chunks.appendleft(chunk[cut:])
                chunk = chunk[:cut]
            count = chunk.count("\n")
            self.lines -= count
            self.chars -= len(chunk)
            lines -= count
            chars -= len(chunk)
            taken.append(chunk)
        if not self.chunks and lines >= 1 and chars >= 1:
            line = self.open_line()
            if len(line) <= chars or self.over is not None:
                taken.append(line)
                self.head, self.over, self.column = "", None, 0
            else:
                taken.append(line[: int(chars)])
                self.head = line[int(chars) :]
        return "".join(taken)

    def drop(self, lines: int, chars: int) -> int:
        """Drop the oldest text, at least so much of it; returns how many lines that was."""
        dropped = 0
        while self.chunks and (lines > 0 or chars > 0):
            chunk = self.chunks.popleft()
            by_lines = _cut_after(chunk, lines, len(chunk)) if lines > 0 else 0
            by_chars = (chunk.find("\n", chars - 1) + 1 or len(chunk)) if chars > 0 else 0
            cut = max(by_lines, by_chars)
            if cut < len(chunk):
                self.chunks.appendleft(chunk[cut:])
                chunk = chunk[:cut]
            count = chunk.count("\n")
            dropped += count
            lines -= count
            chars -= len(chunk)
            self.lines -= count
            self.chars -= len(chunk)
        if chars > 0 and self.head:
            self.head = self.head[chars:]
            dropped += 1
        return dropped


def _cut_after(chunk: str, lines: int, chars: int) -> int:
    """Find where so many lines, or so many characters, of a chunk end."""
    end = -1
    for _ in range(lines):
        end = chunk.find("\n", end + 1)
        if end < 0:
            end = len(chunk) - 1
            break
    return min(end + 1, max(chars, 1))
