"""The default process group of this engine: which one it is, and whether it may be used.

A group that was interrupted, aborted, timed out or lost a peer is never used again: operations
of it may still be in flight, and the next one would mix with them. It is retired: its sockets
are shut down, torch forgets it, and the DDP objects made with it raise by name.
"""

import contextlib
import gc
import itertools
import os
import re
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from jupyter_mgpu.errors import CollectiveError
from jupyter_mgpu.on_engine import imports
from jupyter_mgpu.on_engine.collectives.sockets import SocketTracker

C10D = "torch.distributed.distributed_c10d"

_FAILURE_TEXT = re.compile(
    r"gloo/|closed by peer|pair closure|Operation timed out!|Timed out waiting \d+ ?ms"
    r"|Connection was likely closed|failed to recv|ncclComm|NCCL|TCPStore|unhandled cuda error",
)
"""How torch words a failed collective; RuntimeError alone is too common."""
_TIMEOUT_TEXT = re.compile(r"timed out|time-?out", re.IGNORECASE)


@dataclass(slots=True)
class EngineGroups:
    """What this process knows about its groups. One per process: torch's own state is global.

    Attributes:
        cell: The number of the running cell, or None between two.
        abort_lock: Held by an abort, and where a cell begins or ends: what is meant for one cell
            must not hit the group of the next.
        generation: Raised by the owner, on all ranks together; groups of an older one are over.
        members: The ranks of the pool that the running cell has.
        inits: How often each set of members has made a default group in this generation.
        trouble: Why the default group may not be used again, or None.
        was_aborted: Whether `abort` was called while the running cell was in a collective.
        start_sequence: How many operations the group had seen when the cell began.
        was_made_now: Whether the default group was made in the running cell.
        is_making: Whether init_process_group is under way.
        is_alone: Whether what runs is a task of one engine, with no other rank beside it.
        last_end: Why the last default group ended; empty if the user ended it.
        has_left_others: Whether the running cell ended a group that ranks outside it still have.
        users: The live DDP and FSDP objects.
        graveyard: Groups that are over, until everything that was built on them is gone.
    """

    tracker: SocketTracker = field(default_factory=SocketTracker)
    cell: int | None = None
    abort_lock: threading.Lock = field(default_factory=threading.Lock)
    generation: int = 0
    members: tuple[int, ...] = ()
    inits: dict[tuple[int, ...], int] = field(default_factory=dict)
    trouble: str | None = None
    was_aborted: bool = False
    start_sequence: int = 0
    was_made_now: bool = False
    is_making: bool = False
    is_alone: bool = False
    last_end: str = ""
    has_left_others: bool = False
    users: "weakref.WeakSet[Any]" = field(default_factory=weakref.WeakSet)

    graveyard: list[Any] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def begin(self, generation: int, members: tuple[int, ...]) -> None:
        """Start a cell; retire a group that an earlier generation left."""
        with self.abort_lock:
            self.was_aborted = False
            self.cell = next(self._numbers)
        self.is_alone = False
        self.has_left_others = False
        self.bury()
        if generation != self.generation:
            self.retire(self.trouble or "was ended because another rank lost it")
            self.generation = generation
            self.inits.clear()
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(generation)
        self.members = members
        self.start_sequence = self.sequence()
        self.was_made_now = False

    def describe_members(self) -> str:
        """Name the ranks of the running cell, as in "ranks 0, 2"."""
        word = "rank" if len(self.members) == 1 else "ranks"
        return f"{word} {', '.join(map(str, self.members))}"

    def next_prefix(self) -> str:
        """Name the part of the store that the next default group uses, equal on all ranks."""
        return "/".join(
            [
                f"mgpu/{self.generation}",
                ",".join(map(str, self.members)) or "all",
                str(self.inits.get(self.members, 0)),
            ]
        )

    def default(self) -> Any | None:
        """Return torch's default group, or None."""
        c10d = loaded_c10d()
        return c10d.GroupMember.WORLD if c10d is not None else None

    def sequence(self) -> int:
        """Count the operations that the groups of this process have seen."""
        c10d = loaded_c10d()
        if c10d is None:
            return 0
        total = 0
        for group in list(c10d._world.pg_names):  # noqa: SLF001  torch's only list of groups
            with contextlib.suppress(Exception):  # some backends do not count
                total += int(group._get_sequence_number_for_group())  # noqa: SLF001
        return total

    def was_used(self) -> bool:
        """Say whether the running cell has made or used a group."""
        return self.was_made_now or self.sequence() != self.start_sequence

    def is_healthy(self) -> bool:
        """Say whether the default group can be used.

        CAUTION: all ranks must answer alike, or some would keep it while others wait for them in
        a new one. So this asks only what the owner makes known to all of them, by raising the
        generation, and never whether a peer has closed its sockets: it may just be ahead.
        """
        group = self.default()
        return group is not None and self.trouble is None and backend_error(group) is None

    def leave_default(self) -> None:
        """Note that the default group is about to end, perhaps for ranks outside this cell too."""
        group = self.default()
        self.has_left_others |= group is not None and group.size() > len(self.members) > 0

    def judge(self, error: BaseException) -> str | None:
        """Learn from an error that ended a cell whether the group may be used again.

        Returns:
            `interrupt`, `abort`, `timeout` or `peer` if the error says something about the
            group, else None.
        """
        kind = self._kind(error)
        if kind is not None and self.trouble is None:
            self.trouble = {
                "interrupt": "was interrupted",
                "abort": "was aborted",
                "timeout": "timed out",
                "peer": "lost a rank",
            }[kind]
        return kind

    @imports.protected
    def retire(self, reason: str, *, collect: bool = True) -> None:
        """End the default group and all others, such that nobody can use them again.

        Args:
            reason: What happened to them, as in "was interrupted".
            collect: Whether to collect garbage, so that their threads end now.
        """
        c10d = loaded_c10d()
        self.trouble = None
        if c10d is None:
            return
        has_groups = bool(c10d._world.pg_names) or self.default() is not None  # noqa: SLF001
        self.last_end = reason if has_groups else self.last_end
        # Sockets first: a thread of gloo that still waits for a peer would be joined for ever.
        self.tracker.shut_down("group")
        self.graveyard += list(c10d._world.pg_names)  # noqa: SLF001
        if has_groups:
            _forget_groups(c10d)
        c10d._world.group_count = 0  # noqa: SLF001  else the next names differ between ranks
        for user in list(self.users):
            _disable(user, reason)
        if self.users and collect:
            gc.collect()  # DDP and its reducer are a cycle that holds the group's threads
        self.users.clear()
        if has_groups:
            self.tracker.forget_closed()

    def bury(self) -> None:
        """Let go of the groups that are over, once their DDP objects are gone.

        CAUTION: the end of a gloo group joins its threads, which may need the GIL to let go of
        their last operation. Only the Python object of a group ends it without holding the GIL;
        if that were gone first, the reducer of a DDP object would end it, and block for ever.
        """
        if self.graveyard:
            # In another thread: one of gloo's threads may hang, and then only this one waits.
            over, self.graveyard = self.graveyard, []
            threading.Thread(target=over.clear, daemon=True).start()

    def _kind(self, error: BaseException) -> str | None:
        if isinstance(error, KeyboardInterrupt):
            return "interrupt" if self.was_aborted or self.was_used() else None
        is_ours = any(isinstance(cause, CollectiveError) for cause in _chain(error))
        if self.was_aborted and (is_ours or is_collective_failure(error)):
            return "abort"
        if not is_collective_failure(error):
            return None
        is_timeout = any(_TIMEOUT_TEXT.search(str(cause)) for cause in _chain(error))
        return "timeout" if is_timeout else "peer"


def loaded_c10d() -> ModuleType | None:
    """Return torch's module of process groups if the user's code has imported it."""
    module = sys.modules.get(C10D)
    return module if module is not None and hasattr(module, "GroupMember") else None


def is_collective_failure(error: BaseException) -> bool:
    """Say whether an error, or what it came from, tells of a failed collective or store."""
    return any(_is_torchs(cause) for cause in _chain(error))


def backend_error(group: Any) -> str | None:
    """Ask NCCL's group for an error that no call has raised, as after a time-out."""
    try:
        import torch

        backend = group._get_backend(torch.device("cuda"))  # noqa: SLF001
        found = backend.get_error()
    except (RuntimeError, AttributeError, AssertionError):
        return None  # no such backend, or one that cannot tell
    name = str(getattr(found, "name", found))
    return None if name.upper().endswith("SUCCESS") else name


def abort_backends(timeout_s: float) -> list[str]:
    """Abort the backends that have an abort of their own (NCCL). Callable from any thread."""
    c10d = loaded_c10d()
    if c10d is None:
        return []
    done: list[str] = []
    groups = list(c10d._world.pg_names)  # noqa: SLF001  those of now, however late the thread is
    # In a thread of its own: ncclCommAbort may itself wait for a kernel that never ends.
    thread = threading.Thread(target=_abort_cuda_backends, args=(groups, done), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return done


def _abort_cuda_backends(groups: list[Any], done: list[str]) -> None:
    import torch

    for group in groups:
        try:
            backend = group._get_backend(torch.device("cuda"))  # noqa: SLF001
        except (RuntimeError, AttributeError):
            continue
        if "nccl" not in type(backend).__name__.lower():
            continue  # gloo's own abort frees nobody
        with contextlib.suppress(Exception):  # one that fails must not keep the others
            backend.abort()
            done.append("nccl")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_torchs(error: BaseException) -> bool:
    if isinstance(error, CollectiveError):
        return False  # ours says what the ranks did wrong; the cause of a time-out is torch's
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and bool(_FAILURE_TEXT.search(str(error)))


def _forget_groups(c10d: ModuleType) -> None:
    try:
        # Not destroy: that waits for operations of NCCL that will never end.
        c10d._abort_process_group()  # noqa: SLF001
    except Exception:  # noqa: BLE001  half-made groups; torch's tables are cleared by hand
        world = c10d._world  # noqa: SLF001
        for table in (
            world.pg_map,
            world.pg_names,
            world.pg_group_ranks,
            world.pg_backend_config,
            world.pg_to_tag,
            world.tags_to_pg,
            world.pg_coalesce_state,
        ):
            table.clear()
        c10d._update_default_pg(None)  # noqa: SLF001
        c10d._unregister_all_process_groups()  # noqa: SLF001


def _disable(user: Any, reason: str) -> None:
    """Make an object that was built on a group raise when it is called again."""
    name = type(user).__name__

    def forward(*_args: Any, **_kwargs: Any) -> Any:
        raise CollectiveError(
            f"This {name} was made with a process group that {reason}. "
            f"Make it again after init_process_group(), as in net = {name}(net.module)."
        )

    # On the instance: objects of other groups stay as fast as they are. The reducer holds the
    # group, its threads and the buckets of gradients.
    user.__dict__["forward"] = forward
    for attribute in ("logger", "reducer", "process_group"):
        if attribute in user.__dict__:
            user.__dict__[attribute] = None
