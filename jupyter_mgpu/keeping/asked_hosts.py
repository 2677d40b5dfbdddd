"""What a kernel knows of the other hosts of a kept pool: the keeper's last answer, and its age."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from jupyter_mgpu.errors import PoolClosedError
from jupyter_mgpu.owner.far_hosts import REST_S


class AskedHosts:
    """Asks the keeper at each look, and returns its last answer meanwhile.

    Args:
        ask: Asks the keeper what `FarHosts.look` returns.
    """

    def __init__(self, ask: Callable[[], Future[Any]]) -> None:
        self._ask = ask
        self._question: Future[Any] | None = None
        self._looked_s = -math.inf
        self._told: tuple[float, list[dict[str, Any]]] | None = None  # when, and what

    def look(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return what is known of the hosts, as `FarHosts.look` does; never waits.

        Args:
            names: Those that there are, as long as nothing else is known.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s > REST_S:
            self._told = None  # it is old, and nobody has asked since
        self._looked_s = now_s
        told = self._told
        if self._question is None or self._question.done():
            with contextlib.suppress(PoolClosedError):
                self._question = self._ask()
                self._question.add_done_callback(self._take)
        if told is None:
            unknown = {"reading": None, "age_s": None, "is_lost": False, "trouble": None}
            return [{"name": name, "watched_s": 0.0, **unknown} for name in names]
        heard_s, hosts = told
        return [_later(host, now_s - heard_s) for host in hosts]

    def _take(self, question: Future[Any]) -> None:
        if not question.cancelled() and question.exception() is None:
            self._told = time.monotonic(), question.result()


def _later(host: dict[str, Any], passed_s: float) -> dict[str, Any]:
    age_s = None if host["age_s"] is None else host["age_s"] + passed_s
    return {**host, "age_s": age_s, "watched_s": host["watched_s"] + passed_s}
