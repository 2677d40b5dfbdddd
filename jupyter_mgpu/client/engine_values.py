"""The values of names on the engines: assigned, fetched, described and freed."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from jupyter_mgpu.client.submission import Submission
from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.exchange import Line
from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.on_engine import constants, context
from jupyter_mgpu.owner.pool_owner import PoolOwner
from jupyter_mgpu.sending import Sender

OWN_PRIORITY = 1 << 30
SUMMARY_S = 1.0
CLEAN_UP_S = 2.0
"""A pool ends after so long, whatever the clean-up of its constants does."""


class EngineValues:
    """What composites ask of their pool, and what gives names their values.

    Args:
        owner: Answers for busy engines.
        submission: Takes the calls that wait for an engine.
        sender: Is told which names changed on the engines.
        line: The pool's among those of the kernel.
    """

    def __init__(
        self, owner: PoolOwner, submission: Submission, sender: Sender, line: Line
    ) -> None:
        self.line = line
        self._owner = owner
        self._submission = submission
        self._sender = sender

    @property
    def ranks(self) -> tuple[int, ...]:
        """The pool's ranks."""
        return self._owner.ranks

    def scatter(self, name: str, values: Sequence[Any]) -> None:
        """Give each rank its own value; waits for ranks that are busy.

        Raises:
            ValueError: If there is not one value per rank, or the name is none.
        """
        ranks = self.ranks
        if not name.isidentifier():
            raise ValueError(f"{name!r} was given, but a variable's name must be an identifier.")
        if len(values) != len(ranks):
            raise ValueError(
                f"{len(values)} values were given, but the pool has {len(ranks)} ranks. "
                "Give one value per rank."
            )
        arguments = [(name, value) for value in values]
        self._on_each(context.assign_value, arguments, f"assign {name}")
        self._sender.assigned_on_engines(name, ranks)

    def delete(self, name: str) -> None:
        """Forget a name on every rank, so that its memory is free."""
        self._on_each(context.delete_value, [(name,)] * len(self.ranks), f"delete {name}")
        self._sender.forget_name(name)

    def fetch(self, rank: int, name: str) -> Any:
        """Wait for a rank and return one of its values.

        Raises:
            KeyError: If that rank has no such value.
        """
        return self._submit(context.read_value, (name,), rank, f"fetch {name}").result()

    def summarize(self, rank: int, name: str) -> dict[str, Any] | str | None:
        """Say what a value is, at once: facts, None where there is none, or why not."""
        try:
            value = self._owner.rpc(rank, "summary", names=[name]).result(SUMMARY_S)
        except TimeoutError:
            return f"no answer within {SUMMARY_S:g} s"
        except MgpuError as error:
            return str(error)
        return value.get(name)  # type: ignore[no-any-return]

    def release(self, name: str, ranks: Sequence[int]) -> None:
        """Free what some ranks keep for a composite; does not wait."""
        for rank in ranks:
            with contextlib.suppress(MgpuError):
                self._owner.rpc(rank, "release", name=name)

    def clean_up(self) -> None:
        """Free the constants of the idle ranks, because the pool ends; the others just end."""
        engines = self._owner.status().engines
        idle = [engine.rank for engine in engines if engine.state is EngineState.IDLE]
        with contextlib.suppress(MgpuError):  # it ends by itself in this moment
            calls = [self._submit(constants.free_all, (), rank, "clean up") for rank in idle]
            concurrent.futures.wait(calls, CLEAN_UP_S)

    def _on_each(
        self, fn: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str
    ) -> None:
        """Call a function once on every rank, each with its own arguments, and wait."""
        calls = [
            self._submit(fn, args, rank, name)
            for rank, args in zip(self.ranks, arguments, strict=True)
        ]
        for call in calls:
            call.result()

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], rank: int, name: str
    ) -> TaskFuture:
        """Submit a call of ours: it goes before the user's tasks and is not recorded."""
        return self._submission.call(
            fn, args, {}, name=name, rank=rank, priority=OWN_PRIORITY, is_recorded=False
        )
