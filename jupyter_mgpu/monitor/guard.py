"""Faults in the sampler's thread: none of them may end it, and each is told once."""

import logging

_log = logging.getLogger(__name__)


class Guard:
    """Keeps the thread alive whatever fails inside; logs the first of equal faults.

    Args:
        words: What could not be done.
    """

    def __init__(self, words: str) -> None:
        self._words = words
        self._last: str | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        told = None if error is None else repr(error)
        if isinstance(error, Exception) and told != self._last:
            _log.error(self._words, exc_info=error)
        self._last = told
        return isinstance(error, Exception)
