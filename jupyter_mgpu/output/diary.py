"""The diary of a task: the last of what it printed, to read at any time or to follow live."""

import threading
from collections import deque
from collections.abc import Iterator
from functools import partial

from jupyter_mgpu.output.html import strip_escapes
from jupyter_mgpu.output.screen import Screen

MAX_LINES = 2000
MAX_CHARS = 1_000_000


class Diary:
    """A bounded text that one thread writes and others read. `str(diary)` is the text."""

    def __init__(self) -> None:
        self._screen = Screen(MAX_LINES, MAX_CHARS)
        self._news: deque[str] = deque()
        self._news_chars = 0
        self._first = 0  # number of the oldest piece of news that is still there
        self._lost = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def write(self, text: str, dropped: int = 0) -> None:
        """Append text that the task has written.

        Args:
            text: It may hold carriage returns and colours.
            dropped: How many lines before it were left out on the way.
        """
        with self._changed:
            self._lost += dropped
            self._screen.feed(text)
            self._news.append(text)
            self._news_chars += len(text)
            while len(self._news) > 1 and self._news_chars > MAX_CHARS:
                self._news_chars -= len(self._news.popleft())
                self._first += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Say that nothing more comes; who follows it is done."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @property
    def dropped(self) -> int:
        """How many lines are not in the text any more; the log file has them."""
        with self._changed:
            return self._lost + self._screen.dropped

    def text(self) -> str:
        """Return the text, without colours; a progress bar is its last state."""
        with self._changed:
            return strip_escapes_keeping_lines(self._screen.text())

    @property
    def lines(self) -> list[str]:
        """The text's lines, with colours as escape sequences."""
        with self._changed:
            return self._screen.lines()

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        dropped = self.dropped
        note = f"... {dropped:,} earlier lines not shown\n" if dropped else ""
        return note + self.text()

    def follow(self, *, from_start: bool = True, timeout: float | None = None) -> Iterator[str]:
        """Yield the text as it comes, until the task has ended.

        Args:
            from_start: Begin with what is there already.
            timeout: Seconds without news after which an empty text is yielded, so that the caller
                can look at something else; None waits on.
        """
        with self._changed:
            position = self._first if from_start else self._first + len(self._news)
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._has_after, position), timeout)
                position = max(position, self._first)
                news = [self._news[i - self._first] for i in range(position, self._end)]
                position = self._end
                if not news and self._is_closed:
                    return
            yield "".join(news)

    @property
    def _end(self) -> int:
        return self._first + len(self._news)

    def _has_after(self, position: int) -> bool:
        return self._is_closed or self._end > position


def strip_escapes_keeping_lines(text: str) -> str:
    """Remove escape sequences line by line: the line ends are to stay."""
    return "\n".join(strip_escapes(line) for line in text.split("\n"))
