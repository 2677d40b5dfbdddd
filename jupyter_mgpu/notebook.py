"""The notebook that this process is the kernel of: its names, its id, its cells."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.output.publisher import current_shell


def user_namespace() -> dict[str, Any]:
    """Return the notebook's namespace; a script's `__main__` outside IPython."""
    shell = current_shell()
    return sys.modules["__main__"].__dict__ if shell is None else shell.user_ns


def hidden_names() -> Mapping[str, Any]:
    """Return the names in it that are the shell's own, with its values."""
    return getattr(current_shell(), "user_ns_hidden", {})


def kernel_id() -> str | None:
    """Return the Jupyter server's id of this kernel, None outside one."""
    if "ipykernel" not in sys.modules:
        return None
    with contextlib.suppress(Exception):
        from ipykernel.connect import get_connection_file

        name = Path(get_connection_file()).stem
        return name.removeprefix("kernel-") if name.startswith("kernel-") else None
    return None


def watch_cells(on_cell: Callable[[Any], None]) -> None:
    """Call a function after each cell of the notebook, with IPython's result of it; once only."""
    shell = current_shell()
    if shell is not None and not getattr(shell, "_mgpu_watched", False):
        shell._mgpu_watched = True  # noqa: SLF001 - our own mark
        shell.events.register("post_run_cell", on_cell)


def refuse_on_engine(what: str) -> None:
    """Refuse something that only a kernel can do.

    Raises:
        MgpuError: In an engine.
    """
    engine = context.current()
    if engine is not None:
        raise MgpuError(
            f"{what} was called on rank {engine.rank}, but an engine has no pool of its own. "
            "Call it in the notebook."
        )
