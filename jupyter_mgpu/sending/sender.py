"""Decides what a cell needs sent to each rank: the side that bound a name last wins."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from jupyter_mgpu.errors import SendingError
from jupyter_mgpu.on_engine.namespace.names import CellNames, analyse
from jupyter_mgpu.packing.contents import Content
from jupyter_mgpu.packing.frames import Place, place_here
from jupyter_mgpu.packing.handles import HandleTable
from jupyter_mgpu.sending import choice, notes
from jupyter_mgpu.sending.counters import Clock, KernelCounters
from jupyter_mgpu.sending.kernel_names import KernelNames, collect
from jupyter_mgpu.sending.pack_names import EngineCopies, PackedNames, pack_names
from jupyter_mgpu.sending.plan import Plan, RankPlan
from jupyter_mgpu.sending.rank_state import Origin, RankState, Sent

_MAX_LINE = 60

AskChanged = Callable[[Sequence[int], Sequence[str]], Mapping[int, Collection[str]]]


class Sender:
    """The kernel's side of sending, for one pool. Its methods may be called from any thread.

    Args:
        user_ns: The kernel's user namespace.
        transform: Turns magics into Python; IPython's standard transformation by default.
        hidden: Names that the shell itself defines, with its values (`user_ns_hidden`).
        first_handle: Where the numbers of what is sent begin: above those of earlier kernels.
    """

    def __init__(
        self,
        user_ns: dict[str, Any],
        *,
        transform: Callable[[str], str] | None = None,
        hidden: Mapping[str, Any] | None = None,
        first_handle: int = 1,
    ) -> None:
        self._user_ns = user_ns
        self._transform = transform or _standard_transform()
        self._hidden = hidden or {}
        self._handles = HandleTable(first_handle)
        self._clock = Clock()
        self._kernel = KernelCounters(user_ns, self._clock, self._transform)
        self._ranks: dict[int, RankState] = {}
        self._read_by: dict[str, frozenset[str]] = {}
        self._current: tuple[Origin, CellNames] = (Origin(0, ""), CellNames())
        self._lock = threading.RLock()

    # --- what happened -----------------------------------------------------------------

    def cell_finished(self, source: str, *, failed: bool = False) -> None:
        """Note what a cell of the kernel bound; called after every cell.

        Args:
            source: The cell as it was typed.
            failed: It ended by an error.
        """
        with self._lock:
            self._kernel.cell_finished(source, failed=failed)

    def bound_from_engines(self, names: Iterable[str]) -> None:
        """Note that names of the kernel were bound to the engines' values (`--bind`).

        The engines remain those who bound them last.
        """
        with self._lock:
            for name in names:
                self._kernel.accept(name)

    def cell_ran(self, rank: int, report: dict[str, Any]) -> None:
        """Note what a cell bound and deleted on a rank.

        Args:
            rank: The rank.
            report: What `EngineNamespace.after_cell` returned there.
        """
        origin, cell = self._current
        with self._lock:
            self._state(rank).ran(report, self._clock.tick(), origin)
            for name in report["rebound"]:
                self._read_by[name] = cell.read_by.get(name, frozenset())

    def assigned_on_engines(self, name: str, ranks: Iterable[int]) -> None:
        """Note that a name was bound on ranks from outside a cell, as by `pool[name] = value`."""
        now = self._clock.tick()
        report: dict[str, Any] = {"rebound": [name], "deleted": []}
        with self._lock:
            for rank in ranks:
                self._state(rank).ran(report, now, Origin(0, f"pool[{name!r}] = ..."))

    def forget_name(self, name: str) -> None:
        """Note that a name was deleted on every rank."""
        with self._lock:
            for state in self._ranks.values():
                state.ran({"rebound": [], "deleted": [name]}, 0, Origin(0, ""))

    def forget_rank(self, rank: int) -> None:
        """Note that a rank's engine was replaced by an empty one."""
        with self._lock:
            self._ranks[rank] = self._state(rank).replaced()

    def drop_rank(self, rank: int) -> None:
        """Note that the pool has no such rank any more; one that comes later has nothing."""
        with self._lock:
            self._ranks.pop(rank, None)

    def names_on(self, rank: int) -> set[str]:
        """Return the names that cells bound on a rank, modules aside: they would be lost."""
        with self._lock:
            state = self._state(rank)
            return state.bound.keys() - state.modules.keys()

    def lost_names(self, rank: int) -> set[str]:
        """Return the names that a replaced engine took along and that were not made again."""
        with self._lock:
            return set(self._state(rank).lost)

    # --- what to send ------------------------------------------------------------------

    def plan(
        self,
        source: str,
        ranks: Sequence[int],
        *,
        send: Collection[str] = (),
        keep: Collection[str] = (),
        send_nothing: bool = False,
        ask_changed: AskChanged | None = None,
        count: int = 0,
        place: Place = place_here,
    ) -> Plan:
        """Decide what a cell needs sent, and pack it. Nothing counts as sent before `commit`.

        Args:
            source: The cell's body as it was typed.
            ranks: The ranks it will run on.
            send: Names to send whatever the engines have.
            keep: Names of which the engines' version is used.
            send_nothing: Do not send any name.
            ask_changed: Asks ranks which of some names were changed inside there.
            count: The kernel's execution count, to name the cell later.
            place: Puts large data elsewhere, as `Store.place` does.

        Raises:
            SendingError: If both sides changed a name, a name was lost with an engine, cannot
                be sent, or is to be sent and does not exist.
        """
        cell = analyse(source, self._transform)
        self._current = (Origin(count, _first_line(source)), cell)
        names = {*cell.read, *send}
        if not names:
            return Plan({rank: RankPlan({}, None) for rank in ranks}, _ran=self.cell_ran)
        with self._lock:
            live = {rank: self._state(rank) for rank in ranks}
            states = {rank: state.copy() for rank, state in live.items()}
            read_by = dict(self._read_by)
        # Not under the lock: user code runs while pickling, and ranks are asked.
        names.update(name for name in keep if any(name in s.sent for s in states.values()))
        found = collect(names, self._user_ns, self._handles, hidden=self._hidden, read_by=read_by)
        for state in states.values():
            found.add_modules(state.modules)
        self._check(found, states, send)
        if send_nothing:
            return Plan({rank: RankPlan({}, None) for rank in ranks}, _ran=self.cell_ran)
        chooser = choice.Chooser(
            found, self._user_ns, self._kernel.bound_at, self._handles, send, keep
        )
        chosen = chooser.choose(states, ask_changed)
        return self._packed(found, chooser, chosen, states, live, place)

    def _check(
        self, found: KernelNames, states: Mapping[int, RankState], send: Collection[str]
    ) -> None:
        unknown = sorted(name for name in send if name not in found.values)
        if unknown:
            raise SendingError(
                f"{', '.join(unknown)} was to be sent, but the kernel has no such name."
            )
        choice.check_lost(found, states, self._kernel.bound_at, send)

    def _packed(
        self,
        found: KernelNames,
        chooser: choice.Chooser,
        chosen: Mapping[int, Sequence[str]],
        states: Mapping[int, RankState],
        live: Mapping[int, RankState],
        place: Place,
    ) -> Plan:
        def pack(names: Iterable[str], contents: Mapping[int, Content]) -> PackedNames:
            return pack_names(
                {name: found.values[name] for name in names},
                user_ns=self._user_ns,
                handles=self._handles,
                copies=EngineCopies(contents, chooser.held, chooser.forced),
                place=place,
            )

        def commit(rank: int, sent: dict[str, Sent], contents: dict[int, Content]) -> None:
            self._commit(live[rank], sent, contents)

        def repack(rank: int, names: Collection[str], missing: Sequence[int]) -> PackedNames:
            with self._lock:
                for number in missing:
                    live[rank].contents.pop(number, None)
                contents = dict(live[rank].contents)
            return pack(names, contents)

        plans = {rank: RankPlan({}, None) for rank in chosen}
        lines = list(chooser.lines)
        for names, members in _alike(chosen, states):
            packed = pack(names, states[members[0]].contents)
            sent = {
                name: Sent(self._kernel.bound_at(name), found.fingerprints[name]) for name in names
            }
            plans.update(dict.fromkeys(members, RankPlan(sent, packed)))
            sizes = chooser.sizes(names, packed.contents)
            if sizes:
                lines.append(notes.sent_line(sizes, members))
        if found.reserved:
            lines.append(choice.reserved_line(found.reserved))
        return Plan(plans, tuple(lines), commit, repack, self.cell_ran)

    def _commit(
        self, state: RankState, sent: dict[str, Sent], contents: dict[int, Content]
    ) -> None:
        # The state of a rank that was replaced meanwhile is no longer looked at: no harm.
        with self._lock:
            state.contents = {
                number: mark
                for number, mark in state.contents.items()
                if self._handles.get(number) is not None
            }
            state.contents.update(contents)
            state.sent.update(sent)
            for name in sent:
                for known in (state.bound, state.origins, state.lost):
                    known.pop(name, None)

    def _state(self, rank: int) -> RankState:
        return self._ranks.setdefault(rank, RankState())


def _alike(
    chosen: Mapping[int, Sequence[str]], states: Mapping[int, RankState]
) -> list[tuple[Sequence[str], list[int]]]:
    """Group the ranks that need the same names and have the same tensors: they share frames."""
    groups: list[tuple[Sequence[str], list[int]]] = []
    for rank, names in chosen.items():
        for known, members in groups:
            if known == names and states[members[0]].contents == states[rank].contents:
                members.append(rank)
                break
        else:
            if names:
                groups.append((names, [rank]))
    return groups


def _first_line(source: str) -> str:
    line = next((line.strip() for line in source.splitlines() if line.strip()), "")
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}..."


def _standard_transform() -> Callable[[str], str]:
    from IPython.core import inputtransformer2  # slow to import outside a kernel

    manager: Any = inputtransformer2.TransformerManager
    transform: Callable[[str], str] = manager().transform_cell
    return transform
