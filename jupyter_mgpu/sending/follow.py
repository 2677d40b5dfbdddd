"""Let the engines follow the kernel's environment variables, working folder and import path."""

import os
import re
import secrets
import sys
from typing import Any

from jupyter_mgpu.on_engine.launcher_names import tells_a_rank

_KEPT = re.compile(
    r"(CUDA|NVIDIA|LOCAL|MASTER|TORCHELASTIC|GROUP|ROLE|JAX|MGPU|IPP|OMP|MKL|OPENBLAS|GLOO|NCCL)_.*"
    r"|RANK|WORLD_SIZE|PWD|OLDPWD|SHLVL|_|JPY_.*|NUMEXPR_NUM_THREADS|VECLIB_MAXIMUM_THREADS"
    r"|TORCH_NCCL_.*|LINES|COLUMNS|PYDEVD_.*"
)


def may_follow(name: str) -> bool:
    """Tell whether an environment variable follows: those that tell engines apart do not."""
    return not (_KEPT.fullmatch(name) or tells_a_rank(name))


class Follow:
    """Watches the kernel's surroundings since the pool's start.

    The state is absolute, so that an engine needs the newest one only, and one that was replaced
    needs nothing else. Values of variables are never shown.
    """

    def __init__(self) -> None:
        self._start = dict(os.environ)
        self._start_path = list(sys.path)
        self._seen: tuple[Any, ...] = (_raw_environ(), working_folder(), list(sys.path))
        self._owner = secrets.token_hex(8)
        self._number = 0
        self._state: dict[str, Any] | None = None

    def state(self) -> dict[str, Any] | None:
        """Return what differs from the pool's start, for `apply_follow`; None if nothing ever did.

        Cheap when nothing changed since the last call. The id in it tells states apart.
        """
        now = (_raw_environ(), working_folder(), list(sys.path))
        if now == self._seen:
            return self._state
        self._seen = now
        self._number += 1
        environ, (_, folder, path) = dict(os.environ), now
        names = {
            name
            for name in environ.keys() | self._start.keys()
            if environ.get(name) != self._start.get(name) and may_follow(name)
        }
        self._state = {
            "id": f"{self._owner}-{self._number}",
            "environ": {name: environ.get(name) for name in sorted(names)},
            "folder": folder,
            "path": path,
            "start_path": self._start_path,
        }
        return self._state

    def delta(self, last_id: str = "") -> dict[str, Any] | None:
        """Return the state unless a rank has it already.

        Args:
            last_id: The id of the state that the rank had last.
        """
        state = self.state()
        return None if state is None or state["id"] == last_id else state


def working_folder() -> str | None:
    """Return this process's working folder; None where it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - asked before each task: a Path takes five times as long
    except FileNotFoundError:
        return None


def _raw_environ() -> dict[Any, Any]:
    # os.environ decodes every name and value anew; its raw mapping compares in microseconds.
    return dict(getattr(os.environ, "_data", os.environ))
