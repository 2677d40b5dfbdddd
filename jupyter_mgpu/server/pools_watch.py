"""Follows every pool of this user while somebody watches."""

import asyncio
import time
from collections.abc import Mapping

from jupyter_mgpu.control import OTHER_VERSION, FoundPool, find_pools
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.monitor import HostReading
from jupyter_mgpu.server import pool_rows
from jupyter_mgpu.server.document import Row
from jupyter_mgpu.server.kernels import KernelFacts, Kernels
from jupyter_mgpu.server.pool_link import PoolLink

ANSWER_S = 0.1
"""How long a state waits for the owners' answers; a late one is in the next state."""
FOLDER_S = 3.0
"""How long reading the records may take."""


class PoolsWatch:
    """The pools of this user: found by their records, asked through their owners.

    Args:
        kernels: What the server knows of kernels.

    Attributes:
        trouble: Why pools may be missing or old; None if all is well.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._links: dict[str, PoolLink] = {}
        self._scan: asyncio.Future[list[FoundPool]] | None = None
        self._scanned_s = 0.0
        self.trouble: str | None = None

    @property
    def pools(self) -> list[FoundPool]:
        """The pools that were found last."""
        return [link.pool for link in self._links.values()]

    @property
    def hosts(self) -> list[HostReading]:
        """What their owners know of other hosts."""
        return [host for link in self._links.values() for host in link.hosts]

    async def look(self) -> None:
        """Find the pools and ask their owners; returns within a fraction of a second."""
        await self._find()
        asked = {
            link.ask()
            for link in self._links.values()
            if not link.pool.is_orphaned and link.silent_s is None
        }
        for link in self._links.values():
            if link.silent_s is not None and not link.pool.is_orphaned:
                link.ask()  # nobody waits for a silent one
        if asked:
            await asyncio.wait(asked, timeout=ANSWER_S)

    async def _find(self) -> None:
        """Read the records in a thread: the folder may be on a network that hangs."""
        if self._scan is None:
            self._scanned_s = time.monotonic()
            self._scan = asyncio.wrap_future(call_in_thread(find_pools, "mgpu-records"))
        await asyncio.wait({self._scan}, timeout=ANSWER_S)
        if not self._scan.done():
            if time.monotonic() - self._scanned_s > FOLDER_S:
                self.trouble = "The folder of pool records does not answer: is it on a network?"
            return
        scan, self._scan = self._scan, None
        try:
            self._take(scan.result())
        except OSError as error:
            self.trouble = f"The folder of pool records cannot be read: {error}."
        else:
            self.trouble = None

    def _take(self, pools: list[FoundPool]) -> None:
        found = {pool.id: pool for pool in pools}
        for pool_id in [pool_id for pool_id in self._links if pool_id not in found]:
            self._links.pop(pool_id).close()
        for pool_id, pool in found.items():
            self._links.setdefault(pool_id, PoolLink(pool)).pool = pool

    async def rows(self, gpu_ids: Mapping[str, str]) -> dict[str, dict[str, Row]]:
        """Return the sections `pools`, `engines` and `tasks`.

        Args:
            gpu_ids: The ids of GPU rows by their label.
        """
        sections: dict[str, dict[str, Row]] = {"pools": {}, "engines": {}, "tasks": {}}
        for link in self._links.values():
            kernel = await self._kernels.facts(link.pool.kernel_id)
            try:
                rows = _rows(link, kernel, gpu_ids)
            except (KeyError, TypeError, ValueError, AttributeError):
                link.answer, link.is_understood = None, False
                rows = _rows(link, kernel, gpu_ids)
            for name, found in rows.items():
                sections[name] |= found
        return sections

    def close(self) -> None:
        """Ask nobody any more."""
        for link in self._links.values():
            link.close()
        self._links.clear()


def _rows(
    link: PoolLink, kernel: KernelFacts, gpu_ids: Mapping[str, str]
) -> dict[str, dict[str, Row]]:
    pool, answer, silent_s = link.pool, link.answer, link.silent_s
    row = pool_rows.pool_row(pool, answer, silent_s, kernel)
    if not link.is_understood and silent_s is None:
        row["state"], row["state_words"] = OTHER_VERSION
    is_live = silent_s is None and not pool.is_orphaned
    return {
        "pools": {pool.id: row},
        "engines": pool_rows.engine_rows(pool, answer, is_live=is_live, gpu_ids=gpu_ids),
        "tasks": pool_rows.task_rows(pool, answer),
    }
