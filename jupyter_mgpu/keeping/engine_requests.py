"""What engines ask of the kernel that submitted their task, and who answers when it is gone."""

from collections.abc import Sequence

from jupyter_mgpu.exchange import Line, modules
from jupyter_mgpu.exchange.channel import ORPHANED
from jupyter_mgpu.owner.owner_loop import OwnerLoop
from jupyter_mgpu.wire import Header

_NO_ANSWER = ("taken", "abandon")
"""Requests that only tell something."""


class EngineRequests:
    """Follows the requests for values and queue items, and for parts of names that are missing.

    A request that nobody can answer any more is answered here, so that no task hangs.

    Args:
        core: The pool's owner.

    Attributes:
        modules: Those beside the notebook that engines have asked for, by name.
    """

    def __init__(self, core: OwnerLoop) -> None:
        self.modules: set[str] = set()
        self._core = core
        self._line = Line(core.answer, core.post_to_all, core.store.place)
        self._path: Sequence[str] = ()  # the kernel's, where modules are found without it
        self._asked: dict[tuple[str, int], Header] = {}  # without an answer so far
        self._missing: set[tuple[str, int]] = set()  # tasks, and ranks that wait for parts of them
        self._sessions: dict[int, int] = {}  # of what each rank ran last

    def take(self, header: Header, session: int | None) -> bool:
        """Take an event of the owner.

        Args:
            header: The event's.
            session: That of the kernel which is attached, None without one.

        Returns:
            Whether that kernel should get it.
        """
        operation = header["op"]
        if operation == "request":
            if header["to"] == "module" and "name" in header:
                self.modules.add(header["name"])
            return self._is_for(session, header) or self._answer_alone(header)
        if operation == "started":
            task = self._core.scheduler.tasks.get(header["task"])
            if task is not None:
                self._sessions[header["rank"]] = task.info["session"]
        elif operation == "missing" and session is None:
            self._give_up(header["task"], header["rank"])
        elif operation == "missing":
            self._missing.add((header["task"], header["rank"]))
        elif operation == "ended":
            self._missing = {wait for wait in self._missing if wait[0] != header["task"]}
        elif operation == "engine_died":
            rank = header["rank"]
            for key in [key for key in self._asked if _rank_of(key[0]) == rank]:
                del self._asked[key]
        return True

    def _is_for(self, session: int | None, header: Header) -> bool:
        """Tell whether a kernel can answer an engine, and note that it should."""
        if session is None or self._sessions.get(_rank_of(header["engine"]), session) != session:
            return False
        key = header["engine"], header["id"]
        if header.get("do") in _NO_ANSWER:
            self._asked.pop(key, None)
        elif header.get("do") != "expire":  # that hurries the answer to an earlier one
            self._asked[key] = header
        return True

    def follow(self, folder: str | None, path: Sequence[str]) -> None:
        """Take note of the kernel's working folder and import path."""
        self._path = [place for entry in path if (place := entry or folder)]

    def answered(self, engine: str, number: int) -> None:
        """Take note of the kernel's answer."""
        self._asked.pop((engine, number), None)

    def resent(self, task_id: str, rank: int) -> None:
        """Take note that a rank has got the parts that were missing."""
        self._missing.discard((task_id, rank))

    def kernel_left(self) -> None:
        """End what waits for the kernel."""
        for header in list(self._asked.values()):
            self._answer_alone(header)
        for task_id, rank in self._missing.copy():
            self._give_up(task_id, rank)

    def _give_up(self, task_id: str, rank: int) -> None:
        """End a task of which a rank waits for parts: it runs nothing, so it is free at once."""
        scheduler, engine = self._core.scheduler, self._core.engines.get(rank)
        scheduler.cancel(task_id)
        if engine is not None:
            scheduler.on_event(engine, {"op": "done", "task": task_id, "status": "ok"}, [])

    def _answer_alone(self, header: Header) -> bool:
        """Tell an engine that the kernel which had the answer is gone; False.

        Modules are files, which this process reads as well.
        """
        self._asked.pop((header["engine"], header["id"]), None)
        if header["to"] == "module" and "name" in header:
            modules.answer(self._line, header, self._path)
        elif header.get("do") not in _NO_ANSWER:
            answer = {"op": "answer", "id": header["id"], "status": ORPHANED}
            self._core.answer(header["engine"], answer, ())
        return False


def _rank_of(engine: str) -> int:
    return int(engine.partition(".")[0])
