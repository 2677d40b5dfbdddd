"""What this Jupyter server knows of the kernels that hold pools: whose they are, which notebook."""

import contextlib
import time
from dataclasses import dataclass
from typing import Any

KEEP_S = 10.0
"""A notebook is renamed rarely: its path is asked for so often."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel, as this server sees it.

    Attributes:
        here: It is one of this server's.
        state: As the server knows it ("idle", "busy", ...), None where unknown.
        path: Its notebook, as the file browser names it.
    """

    here: bool = False
    state: str | None = None
    path: str | None = None


class Kernels:
    """Asks the server's own managers; a gateway's or another implementation may know less.

    Args:
        settings: The web application's settings.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._kernels = settings.get("kernel_manager")
        self._sessions = settings.get("session_manager")
        self._paths: dict[str, tuple[float, str | None]] = {}

    async def facts(self, kernel_id: str | None) -> KernelFacts:
        """Return what is known of a kernel."""
        if kernel_id is None or self._kernels is None or kernel_id not in self._kernels:
            return KernelFacts()
        state = None
        with contextlib.suppress(Exception):  # who extends the manager may raise anything
            state = getattr(self._kernels.get_kernel(kernel_id), "execution_state", None)
        return KernelFacts(here=True, state=state, path=await self._path(kernel_id))

    async def _path(self, kernel_id: str) -> str | None:
        known_s, path = self._paths.get(kernel_id, (0.0, None))
        now_s = time.monotonic()
        if now_s - known_s > KEEP_S:
            path = None
            with contextlib.suppress(Exception):  # there may be no session, or another manager
                session = await self._sessions.get_session(kernel_id=kernel_id)  # type: ignore[union-attr]
                path = session["path"] or None
            self._paths[kernel_id] = (now_s, path)
        return path
