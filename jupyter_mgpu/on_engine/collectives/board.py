"""The board in the pool's store where each rank writes which operation it waits in.

A rank that waited too long reads it to say who is missing and where that rank is instead.
"""

import contextlib
import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from jupyter_mgpu.on_engine.collectives.groups import EngineGroups

_ANSWER_S = 10.0


class PlaceBoard:
    """This rank's entry on the board, and a look at the others'."""

    def __init__(self, groups: EngineGroups) -> None:
        self._groups = groups
        self._store: Any = None
        self._is_entered = False

    def enter(self, operation: str, where: str) -> None:
        """Write that this rank is in an operation now."""
        self._is_entered = True
        self._write({"state": "in", "operation": operation, "where": where})

    def leave(self, operation: str, where: str) -> None:
        """Write that this rank has come out of it."""
        self._write({"state": "out", "operation": operation, "where": where})

    def keep(self) -> None:
        """Let the entry of a failed operation stay when the cell ends.

        What failed here may be what another rank's time-out has torn: that one reads the board
        next, and must learn where this rank was. The next group has entries of its own.
        """
        self._is_entered = False

    def end_cell(self) -> None:
        """Write that this rank's cell is over, if it has used the board."""
        if self._is_entered:
            self._is_entered = False
            self._write({"state": "idle"})

    def missing(self, operation: str, ranks: list[int]) -> str:
        """Say which of the ranks are not in this operation, and where they are instead."""
        told = []
        for rank in ranks:
            entry = self._read(rank)
            if entry is None or entry["state"] != "in" or entry["operation"] != operation:
                told.append(f"rank {rank}, {_describe(entry)}")
        return " and ".join(told) or "the other ranks, which are in it as well"

    def _write(self, entry: dict[str, str]) -> None:
        key, text = self._key(int(os.environ["RANK"])), json.dumps(entry)
        self._ask(lambda store: store.set(key, text))

    def _read(self, rank: int) -> dict[str, str] | None:
        key = self._key(rank)
        text = self._ask(lambda store: store.get(key) if store.check([key]) else None)
        entry: dict[str, str] | None = json.loads(text) if text else None
        return entry

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Ask the store; an abort shuts its connection, so a lost one is made again once."""
        for _ in range(2):
            with contextlib.suppress(RuntimeError):  # without a board only a hint is lost
                self._store = self._store or _connect()
                return question(self._store) if self._store is not None else None
            self._store = None
        return None

    def _key(self, rank: int) -> str:
        groups = self._groups
        members = ",".join(map(str, groups.members)) or "all"
        return f"mgpu-board/{groups.generation}/{members}/{rank}"


def _connect() -> Any:
    host, _, port = os.environ.get("MGPU_STORE", "").rpartition(":")
    if not host:
        return None
    from torch.distributed import TCPStore

    return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=_ANSWER_S))


def _describe(entry: dict[str, str] | None) -> str:
    if entry is None:
        return "which has called nothing of comm yet"
    if entry["state"] == "idle":
        return "which is idle"
    place = f"{entry['operation']} ({entry['where']})"
    if entry["state"] == "in":
        return f"which is in {place}"
    return f"which has left {place} and runs other code"
