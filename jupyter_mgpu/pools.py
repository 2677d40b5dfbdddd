"""The open pools of this kernel: by name, the latest, all; ended when the kernel ends."""

import atexit
import os
import sys
from typing import Any

from jupyter_mgpu.pool import Pool

_pools: dict[str, Pool] = {}
_background: set[str] = set()
_latest: Pool | None = None


def register(pool: Pool, *, in_background: bool = False) -> None:
    """Let an open pool be found; it is the latest one now, unless it is one of the background."""
    global _latest
    _pools[pool.name] = pool
    if in_background:
        _background.add(pool.name)
    else:
        _latest = pool


def unregister(pool: Pool) -> None:
    """Forget a pool that has ended."""
    global _latest
    _pools.pop(pool.name, None)
    _background.discard(pool.name)
    if _latest is pool:
        others = [other for name, other in _pools.items() if name not in _background]
        _latest = others[-1] if others else None


def latest_pool() -> Pool | None:
    """Return the open pool that was started last, or None."""
    return _latest


def find_pool(name: str) -> Pool | None:
    """Return an open pool of this kernel by name, or None."""
    return _pools.get(name)


def open_pools() -> list[Pool]:
    """Return every open pool of this kernel."""
    return list(_pools.values())


def on_cell(result: Any) -> None:
    """Let the pools know what a cell of the notebook has bound and loaded; IPython calls it."""
    for pool in open_pools():
        pool.sender.cell_finished(result.info.raw_cell or "", failed=not result.success)
        if "torch" in sys.modules:
            pool.owner.expect_collectives()


def _let_go_of_all() -> None:
    """End what lives with this kernel, and leave the others."""
    for pool in open_pools():
        if pool.is_kept:
            pool.detach()
        else:
            pool.shutdown(wait_for_tasks=False)


atexit.register(_let_go_of_all)


def _after_fork() -> None:
    """Make a forked child forget the pools: they belong to its parent."""
    global _latest
    _pools.clear()
    _latest = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
