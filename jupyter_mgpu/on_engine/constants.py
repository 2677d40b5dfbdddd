"""The values of constants in this process: made at their first use, freed between two tasks."""

import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, NoReturn

from jupyter_mgpu import packing
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.on_engine import context, failure


class Recipe(NamedTuple):
    """How a constant is made: `value` is it, makes it, or is the name that it has here."""

    kind: Literal["value", "factory", "name"]
    value: Any
    cleanup: Callable[[Any], Any] | None


class Slot:
    """One constant in this process.

    Args:
        load: Returns its recipe; called once, unless it raises.
    """

    def __init__(self, load: Callable[[], Recipe]) -> None:
        self._load = load
        self._recipe: Recipe | None = None
        self._made: list[Any] = []  # the value, once it is there
        self._lock = threading.RLock()

    def value(self) -> Any:
        """Return the value; what its factory raises is raised, and it is tried again next time."""
        with self._lock:
            if self._made:
                return self._made[0]
            self._recipe = recipe = self._recipe or self._load()
            if recipe.kind == "name":
                return context.read_value(recipe.value)
            self._made = [recipe.value() if recipe.kind == "factory" else recipe.value]
            self._recipe = Recipe(recipe.kind, None, recipe.cleanup)
            return self._made[0]

    def peek(self) -> Any:
        """Return the value if it was made here, else None."""
        return self._made[0] if self._made else None

    def free(self) -> None:
        """Let go of the value, after its clean-up, for good."""
        with self._lock:
            made, self._made = self._made, []
            recipe, self._recipe = self._recipe, None
            self._load = raise_freed
            if made and recipe is not None and recipe.cleanup is not None:
                recipe.cleanup(made[0])


_slots: dict[str, Slot] = {}


def value_of(key: str) -> Any:
    """Return the value of a constant of the kernel.

    Raises:
        MgpuError: If it has been freed.
        BaseException: What its factory raises.
    """
    slot = _slots.get(key)
    if slot is None:
        slot = _slots.setdefault(key, Slot(lambda: _fetch(key)))
    return slot.value()


def _fetch(key: str) -> Recipe:
    answer = context.require().requests.ask({"to": "constant", "key": key})
    status = answer.header["status"]
    if status == "ok":
        recipe: Recipe = packing.unpack(answer.frames)
        return recipe
    if status == "orphaned":
        raise MgpuError(
            "This Constant was made by a kernel that has ended, and its value with it. Make it "
            "again, and submit the task again."
        )
    if status == "foreign":
        raise MgpuError("This Constant has the values of another pool's Composite.")
    return raise_freed()


def raise_freed() -> NoReturn:
    """Say that a constant is used too late."""
    raise MgpuError(
        "This Constant was freed: it was closed, or nothing in the notebook refers to it any more. "
        "Keep it in a variable as long as it is used."
    )


def free(key: str) -> None:
    """Free a constant, if it is here; what its clean-up raises is told."""
    slot = _slots.pop(key, None)
    if slot is None:
        return
    try:
        slot.free()
    except BaseException as error:  # noqa: BLE001 - it is the user's, and no task's
        record = failure.describe(error)
        engine = context.require()
        where = f" ({record['where']})" if record["where"] else ""
        message = (
            f"The clean-up of a Constant failed on rank {engine.rank}: "
            f"{record['ename']}: {record['evalue']}{where}"
        )
        engine.emit({"op": "notice", "message": message}, [])


def free_all() -> None:
    """Free every constant, because the engine ends."""
    for key in list(_slots):
        free(key)


def values() -> dict[str, Any]:
    """Return the values that are here, by key."""
    return {key: slot.peek() for key, slot in list(_slots.items())}
