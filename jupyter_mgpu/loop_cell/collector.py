"""Replays in the kernel what the iterations have recorded, as the plain loop would have done it."""

import ast
import copy
import types
from typing import Any

from jupyter_mgpu.loop_cell.effects import is_array
from jupyter_mgpu.loop_cell.generate import compile_function, function_definition
from jupyter_mgpu.loop_cell.kernel_names import UNCHANGEABLE
from jupyter_mgpu.loop_cell.records import Classification, Site, SiteForm

Record = tuple[Any, ...]
"""What one statement has done: its site's number and the operands."""

_FOLDS = (SiteForm.AUGMENTED, SiteForm.REBINDING)


class Collector:
    """Brings results into the kernel's names.

    Numbers and arrays are folded as results arrive, apart from the user's own, so that operands
    need not be kept. All else waits for `finish`. Until then no name of the kernel changes.

    Args:
        loop: The cell.
        namespace: The kernel's names.

    Attributes:
        num_applied: How many results were applied.
    """

    def __init__(self, loop: Classification, namespace: dict[str, Any]) -> None:
        self._loop, self._namespace = loop, namespace
        self._replays = [_replay(site, loop, namespace) for site in loop.sites]
        self._folded: dict[str, Any] = {}
        self._copies: dict[str, Any] = {}  # what in-place operators change instead of the user's
        for name in dict.fromkeys(site.name for site in loop.sites):
            if name in namespace:
                self._begin(name)
        self._waiting: list[Record] = []
        self._last_index = -1
        self.num_applied = 0

    def _begin(self, name: str) -> None:
        """Prepare a name to which operands can be folded at once."""
        value = self._namespace[name]
        forms = {site.form for site in self._loop.sites if site.name == name}
        has_items = hasattr(type(value), "__setitem__")
        if type(value) in UNCHANGEABLE or (is_array(value) and not has_items):
            if forms <= set(_FOLDS):
                self._folded[name] = value
        elif forms == {SiteForm.AUGMENTED} and is_array(value) and not _has_graph(value):
            copied = value.clone() if hasattr(value, "clone") else copy.copy(value)
            self._folded[name] = self._copies[name] = copied

    def apply(self, index: int, result: tuple[Record, ...]) -> None:
        """Take the result of one iteration; results come in loop order.

        Args:
            index: The iteration's place in the loop, from 0.
            result: What the function of the iteration has returned.

        Raises:
            ValueError: If a later result was applied before: sums would differ from the loop's.
            Exception: What folding raises, as the plain loop would.
        """
        if index <= self._last_index:
            raise ValueError(
                f"The result of iteration {index} was applied after that of iteration "
                f"{self._last_index}. Apply results in loop order."
            )
        self._last_index = index
        for record in result:
            name = self._loop.sites[record[0]].name
            if name in self._folded:
                self._folded[name] = self._replays[record[0]](self._folded[name], *record[1:])
            else:
                self._waiting.append(record)
        self.num_applied += 1

    def finish(self) -> None:
        """Change the kernel's names, in the order in which the plain loop would.

        Raises:
            Exception: What a change raises, such as an IndexError of a list that is too short.
                As in the plain loop, what came before it is done.
        """
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            site = self._loop.sites[record[0]]
            old = self._namespace[site.name]
            new = self._replays[record[0]](old, *record[1:])
            if site.form in _FOLDS:
                self._namespace[site.name] = new
        for name, value in self._folded.items():
            if value is self._copies.get(name, self):
                self._namespace[name][...] = value
            else:
                self._namespace[name] = value
        self._folded, self._copies = {}, {}

    def partial(self) -> dict[str, Any]:
        """Return what was applied so far, by name, without changing the kernel's names.

        A number or array is folded as far as it goes. For any other name: a list with the
        operands of each change in loop order, such as (index, value) of `a[i] = value`.
        """
        found = dict(self._folded)
        for number, *operands in self._waiting:
            found.setdefault(self._loop.sites[number].name, []).append(tuple(operands))
        return found


def _has_graph(value: Any) -> bool:
    return bool(getattr(value, "requires_grad", False))


def _replay(site: Site, loop: Classification, namespace: dict[str, Any]) -> types.FunctionType:
    """Make the function that does what a site does, with operands as arguments."""
    operands = [loop.fresh("_operand") + str(number) for number in range(_num_operands(site))]
    end = ast.copy_location(ast.Return(ast.Name(site.name, ast.Load())), site.statement)
    body = [copy.deepcopy(site.statement), end]
    definition = function_definition("parfor_replay", [site.name, *operands], body, site.line)
    return compile_function(definition, loop.filename, namespace)


def _num_operands(site: Site) -> int:
    return len(site.operands) + (site.form is SiteForm.STORE)
