"""One value per rank, seen from the kernel."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from jupyter_mgpu.exchange import Line


class Engines(Protocol):
    """What a composite asks of the engines."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The pool's ranks."""

    @property
    def line(self) -> Line:
        """What leads to the engines."""

    def fetch(self, rank: int, name: str) -> Any:
        """Wait for a rank and return one of its values."""

    def summarize(self, rank: int, name: str) -> dict[str, Any] | str | None:
        """Say what a value is, at once: facts, None where there is none, or why not."""


class Composite:
    """One value per rank. `c[r]` waits for rank r and fetches its value.

    A view by name, `pool["x"]`, is live and owns nothing. What `spmd(fn)` returns owns its
    values: they are freed on the engines when it is. GPU tensors come as CPU copies. Its repr
    moves no data and never waits for a busy engine.

    Args:
        pool: Whose ranks.
        name: The name that the values have on the engines.
        label: What the repr says of it; the name by default.
        ranks: Where there are values; all ranks by default.
        release: Frees the values; given by who made them for this composite.
    """

    def __init__(
        self,
        pool: Engines,
        name: str,
        *,
        label: str | None = None,
        ranks: tuple[int, ...] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self._pool = pool
        self._name = name
        self._label = label or repr(name)
        self._ranks = ranks
        if release is not None:
            weakref.finalize(self, release).atexit = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that it has a value of."""
        return self._ranks if self._ranks is not None else self._pool.ranks

    @property
    def name(self) -> str:
        """The name that the values have on the engines."""
        return self._name

    @property
    def line(self) -> Line:
        """What leads to the engines that have the values."""
        return self._pool.line

    def __len__(self) -> int:
        return len(self.ranks)

    def __iter__(self) -> Iterator[Any]:
        return (self[rank] for rank in self.ranks)

    def __getitem__(self, rank: int) -> Any:
        """Fetch the value of one rank.

        Raises:
            IndexError: If there is no such rank.
            KeyError: If that rank has no such value.
        """
        if rank not in self.ranks:
            raise IndexError(f"Rank {rank} was asked for, but there are ranks {list(self.ranks)}.")
        return self._pool.fetch(rank, self._name)

    def __repr__(self) -> str:
        lines = [f"Composite {self._label}"]
        for rank in self.ranks:
            facts = self._pool.summarize(rank, self._name)
            text = _describe(facts) if isinstance(facts, dict) else facts or "no data"
            lines.append(f"  rank {rank}: {text}")
        return "\n".join(lines)


def _describe(facts: dict[str, Any]) -> str:
    parts = [str(facts["type"])]
    keys = ("shape", "dtype", "device")
    parts += [f"{key} {facts[key]}" for key in keys if facts.get(key) is not None]
    if facts.get("repr") and len(parts) == 1:
        parts.append(str(facts["repr"]))
    return ", ".join(parts)
