"""Which names go to which rank: last writer wins, changed objects again, conflicts refused."""

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jupyter_mgpu.errors import SendingError
from jupyter_mgpu.packing.contents import Content, content
from jupyter_mgpu.packing.handles import HandleTable
from jupyter_mgpu.sending.kernel_names import KernelNames, ModuleReference, fault_message
from jupyter_mgpu.sending.notes import format_ranks
from jupyter_mgpu.sending.rank_state import RankState, Sent


class Chooser:
    """Chooses the names to send for one cell.

    Args:
        found: The kernel's names that the cell needs.
        user_ns: The kernel's namespace.
        bound_at: When the kernel bound a name last.
        handles: The kernel's tensors and arrays by number.
        send: Names to send in any case.
        keep: Names not to send in any case.

    Attributes:
        held: Handles that must not be overwritten on the engines.
        forced: Handles whose data is sent in any case.
        lines: What to tell the user.
    """

    def __init__(
        self,
        found: KernelNames,
        user_ns: dict[str, Any],
        bound_at: Callable[[str], int],
        handles: HandleTable,
        send: Collection[str],
        keep: Collection[str],
    ) -> None:
        self._found = found
        self._user_ns = user_ns
        self._bound_at = bound_at
        self._handles = handles
        self._send = send
        self._keep = keep
        self._contents: dict[int, Content] = {}
        self.held = self._leaves(keep)
        self.forced = self._leaves(send)
        self.lines: list[str] = []

    def choose(
        self,
        states: Mapping[int, RankState],
        ask_changed: Callable[[Sequence[int], Sequence[str]], Mapping[int, Collection[str]]] | None,
    ) -> dict[int, list[str]]:
        """Choose the names for each rank.

        Raises:
            SendingError: If a name was changed inside on both sides, or cannot be sent and a
                rank does not have it.
        """
        chosen: dict[int, list[str]] = {}
        doubtful: dict[int, set[str]] = {}
        for rank, state in states.items():
            names, changed = self._for_rank(state)
            chosen[rank] = names
            also = self._touched(state, {*names, *changed})
            if changed | also:
                doubtful[rank] = changed | also
                chosen[rank] = [name for name in self._found.values if name in {*names, *changed}]
        if doubtful and ask_changed is not None:
            asked = sorted(set().union(*doubtful.values()))
            answers = ask_changed(sorted(doubtful), asked)
            self._refuse_conflicts(
                {rank: doubtful[rank] & set(answers.get(rank, ())) for rank in doubtful}
            )
        return chosen

    def sizes(self, names: Sequence[str], contents: Mapping[int, Content]) -> dict[str, int | None]:
        """Return the bytes that each name took; None for code and numbers. Modules are left out."""
        sizes: dict[str, int | None] = {}
        counted: set[int] = set()
        for name in names:
            value, fingerprint = self._found.values[name], self._found.fingerprints[name]
            if isinstance(value, types.ModuleType | ModuleReference):
                continue
            if isinstance(value, type | types.FunctionType):
                sizes[name] = None
                continue
            if fingerprint is None:
                sizes[name] = len(value) if isinstance(value, str | bytes) else None
                continue
            leaves = (set(fingerprint.leaves) & contents.keys()) - counted
            counted |= leaves
            objects = [self._handles.get(number) for number in leaves]
            data = sum(obj.nbytes for obj in objects if obj is not None)
            sizes[name] = data or fingerprint.num_bytes
        return sizes

    def _for_rank(self, state: RankState) -> tuple[list[str], set[str]]:
        names, changed = [], set()
        for name in self._found.values:
            need = self._need(name, state)
            if need and name in self._found.faults:
                has_one = name in state.bound or name in state.sent
                if not has_one:
                    error = self._found.faults[name]
                    raise SendingError(
                        fault_message(name, error, self._user_ns, self._handles)
                    ) from error
                self.lines.append(f"{name} cannot be sent: the engines keep theirs")
            elif need == "send":
                names.append(name)
            elif need == "changed":
                changed.add(name)
        return names, changed

    def _need(self, name: str, state: RankState) -> str:
        sent = state.sent.get(name)
        if name in self._send:
            return "send"
        if name in self._keep:
            return "" if sent or name in state.bound else "send"
        if state.bound.get(name, 0) > self._bound_at(name):
            return ""
        if sent is None or self._bound_at(name) > sent.bound_at:
            return "send"
        return "changed" if self._is_changed(name, sent, state) else ""

    def _is_changed(self, name: str, sent: Sent, state: RankState) -> bool:
        if name in self._found.faults:
            return True
        now = self._found.fingerprints[name]
        if now is None or sent.fingerprint is None:
            return False
        if now.structure != sent.fingerprint.structure:
            return True
        return any(state.contents.get(leaf) != self._content(leaf) for leaf in now.leaves)

    def _touched(self, state: RankState, names: Collection[str]) -> set[str]:
        """Find names not to be sent, whose tensors would be overwritten by those that are."""
        overwritten = {
            leaf
            for leaf in self._leaves(names) - self.held
            if leaf in state.contents and state.contents[leaf] != self._content(leaf)
        }
        return (
            {
                name
                for name, sent in state.sent.items()
                if sent.fingerprint is not None
                and name not in names
                and name not in self._send
                and name not in self._keep
                and overwritten & set(sent.fingerprint.leaves)
            }
            if overwritten
            else set()
        )

    def _leaves(self, names: Collection[str]) -> set[int]:
        prints = (self._found.fingerprints.get(name) for name in names)
        return {leaf for found in prints if found is not None for leaf in found.leaves}

    def _content(self, leaf: int) -> Content:
        if leaf not in self._contents:
            obj: Any = self._handles.get(leaf)
            self._contents[leaf] = () if obj is None else content(obj)
        return self._contents[leaf]

    def _refuse_conflicts(self, conflicts: Mapping[int, Collection[str]]) -> None:
        names = sorted({name for found in conflicts.values() for name in found})
        if not names:
            return
        ranks = format_ranks(rank for rank, found in conflicts.items() if found)
        listed, name = ", ".join(names), names[0]
        raise SendingError(
            f"{listed} was changed in the kernel and on {ranks} since it was sent. "
            f"Say which one counts: --send {name} sends the kernel's, --keep {name} keeps the "
            "engines'."
        )


def check_lost(
    found: KernelNames,
    states: Mapping[int, RankState],
    bound_at: Callable[[str], int],
    send: Collection[str],
) -> None:
    """Refuse a cell that reads names which a replaced engine took along.

    Raises:
        SendingError: If so; it names the rank, the names and the cells to run again.
    """
    lost: dict[str, list[int]] = {}
    for rank, state in states.items():
        for name, when in state.lost.items():
            if name in found.read and name not in send and bound_at(name) < when:
                lost.setdefault(name, []).append(rank)
    if not lost:
        return
    ranks = sorted({rank for members in lost.values() for rank in members})
    origins = {str(states[members[0]].origins[name]) for name, members in lost.items()}
    kernel_has = [name for name in lost if name in found.values]
    hint = f", or send the kernel's with --send {kernel_has[0]}" if kernel_has else ""
    raise SendingError(
        f"{', '.join(sorted(lost))} was assigned on the engines and is gone on "
        f"{format_ranks(ranks)}, whose engine was replaced. "
        f"Run {' and '.join(sorted(origins))} again{hint}."
    )


def reserved_line(names: Collection[str]) -> str:
    """Say that the engines' own rank, world_size and device are used."""
    listed = ", ".join(sorted(names))
    return f"{listed}: the engines have their own, the kernel's is not sent"
