"""A bounded list of lines that understands what progress bars write.

Carriage return, backspace, cursor up and down, erase: as in a terminal, as far as bars use them.
Colours stay in the text as escape sequences.
"""

import re
from collections import deque

MAX_LINE_CHARS = 10_000
_TOKENS = re.compile(r"(\r|\n|\x08|\x1b\[[0-9;?]*[A-HJKSTfhlsu]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\))")


class Screen:
    """The last lines of a text.

    Args:
        max_lines: How many lines are kept.
        max_chars: How many characters are kept, over all lines.
    """

    def __init__(self, max_lines: int, max_chars: int = 1_000_000) -> None:
        self._max_lines = max_lines
        self._max_chars = max_chars
        self._lines: deque[str] = deque([""])
        self._up = 0  # rows between the cursor and the last line
        self._column = 0
        self._chars = 0
        self.dropped = 0
        """How many lines went out at the top."""

    def feed(self, text: str) -> None:
        """Append text."""
        for token in _TOKENS.split(text):
            if token == "\n":
                self._new_line()
            elif token == "\r":
                self._column = 0
            elif token == "\x08":
                self._column = max(self._column - 1, 0)
            elif token.startswith("\x1b") and not token.endswith("m") and _TOKENS.fullmatch(token):
                self._control(token)
            elif token:
                self._put(token)

    def _new_line(self) -> None:
        self._column = 0
        if self._up:
            self._up -= 1
            return
        self._lines.append("")
        while len(self._lines) > self._max_lines + 1 or (
            self._chars > self._max_chars and len(self._lines) > 1
        ):
            self._chars -= len(self._lines.popleft())
            self.dropped += 1

    def _put(self, text: str) -> None:
        index = len(self._lines) - 1 - self._up
        line, column = self._lines[index], self._column
        if column == 0 and ("\x1b" in text or "\x1b" in line):
            new = text  # columns cannot be counted through escapes: a new state of the line
        else:
            new = line[:column].ljust(column) + text + line[column + len(text) :]
        if len(new) > MAX_LINE_CHARS:
            new = new[:MAX_LINE_CHARS]
        self._column = min(column + len(text), MAX_LINE_CHARS)
        self._chars += len(new) - len(line)
        self._lines[index] = new

    def _control(self, token: str) -> None:
        kind = token[-1]
        digits = token[2:-1]
        count = int(digits) if digits.isdigit() else 0
        if kind == "A":
            self._up = min(self._up + (count or 1), len(self._lines) - 1)
        elif kind == "B":
            self._up = max(self._up - (count or 1), 0)
        elif kind == "C":
            self._column = min(self._column + (count or 1), MAX_LINE_CHARS)
        elif kind == "D":
            self._column = max(self._column - (count or 1), 0)
        elif kind == "G":
            self._column = max(min(count, MAX_LINE_CHARS) - 1, 0)
        elif kind == "K":
            self._erase(whole=count == 2)  # ECMA-48: 2 is the whole line

    def _erase(self, *, whole: bool) -> None:
        index = len(self._lines) - 1 - self._up
        line = self._lines[index]
        new = "" if whole else line[: self._column]
        self._chars += len(new) - len(line)
        self._lines[index] = new

    def clear(self) -> None:
        """Forget everything."""
        self._lines = deque([""])
        self._up = self._column = self._chars = self.dropped = 0

    def lines(self) -> list[str]:
        """Return the lines; the open last one counts if it has text."""
        lines = list(self._lines)
        return lines if lines[-1] else lines[:-1]

    def text(self) -> str:
        """Return the whole text."""
        return "\n".join(self._lines)

    def take_complete(self) -> list[str]:
        """Remove and return the lines that are finished; bars above the cursor stay."""
        number = len(self._lines) - 1 - self._up
        taken = [self._lines.popleft() for _ in range(number)]
        self._chars -= sum(len(line) for line in taken)
        return taken
