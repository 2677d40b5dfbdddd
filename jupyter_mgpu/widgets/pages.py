"""Which pages look at a view: a hidden one is sent nothing, and one that is gone neither."""

import threading

ANSWER_S = 30.0


class Pages:
    """The pages that have spoken of one view, and whether it is visible there.

    Before a page has spoken one is assumed: where messages wait for the running cell to end, a view
    is to be live all the same.

    Args:
        is_assumed: Whether there is such a page.
    """

    def __init__(self, *, is_assumed: bool) -> None:
        self._is_assumed = is_assumed
        self._visible: dict[str, bool] = {}
        self._asked_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def heard(self, page: str, *, is_visible: bool) -> None:
        """Take what a page says of itself."""
        with self._lock:
            self._is_assumed = False
            self._asked_s.pop(page, None)
            self._visible.pop(page, None)
            if is_visible:
                self._visible[page] = True

    def asked(self, now_s: float) -> None:
        """Note that all pages were asked whether they are still there."""
        with self._lock:
            for page in self._visible:
                self._asked_s.setdefault(page, now_s)

    def drop_assumption(self) -> None:
        """Note that the view is drawn elsewhere."""
        with self._lock:
            self._is_assumed = False

    def is_watched(self, now_s: float) -> bool:
        """Whether a page may show the view; one that was asked and has not answered is gone."""
        with self._lock:
            for page, asked_s in list(self._asked_s.items()):
                if now_s - asked_s > ANSWER_S:
                    self._asked_s.pop(page)
                    self._visible.pop(page, None)
            return self._is_assumed or bool(self._visible)
