"""The pool's engine: an ipyparallel engine with guards, a direct connection and a task runner.

What ipyparallel's engine lacks or gets wrong is mended here, and only here.
"""

import importlib
import os
import sys

from jupyter_mgpu.on_engine import (
    guard,
    interfaces,
    launcher_names,
    lifeline,
    orders,
    scheduled_gpus,
)

if __name__ == "__main__":  # before any thread and any heavy import
    orders.unfold()
    scheduled_gpus.take_own()
    scheduled_gpus.take_cores()
    if lifeline.URL_VARIABLE in os.environ:
        importlib.import_module("jupyter_mgpu.on_engine.owner_address").find()
        importlib.import_module("jupyter_mgpu.on_engine.far_guard").install()
    else:
        guard.install()
    launcher_names.forget_ranks()  # before any library looks
    interfaces.choose_interfaces()

    # ipykernel would load its debugger, which nobody can reach on an engine: a sixth of its memory.
    # It does without where debugpy cannot be imported; user code still can.
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    importlib.import_module("ipykernel.debugger")
    del sys.modules["debugpy"]

import json
import signal
import threading
from typing import Any

from ipyparallel.engine import app
from ipyparallel.engine.kernel import IPythonParallelKernel

from jupyter_mgpu.on_engine.engine import Engine
from jupyter_mgpu.transport.late_engine import LateEngine


class _NoShellChannelThread:
    """Stands where ipykernel 7 looks for its shell channel thread, which engines do not have."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


class EngineKernel(IPythonParallelKernel):
    """ipyparallel's kernel, with what ipykernel 7 expects of a kernel."""

    # ipykernel 7 reads `.parent_thread` for each cell with `await`; ipyparallel's engine leaves
    # None there, so that the handler died and no reply was ever sent.
    shell_channel_thread = _NoShellChannelThread()
    _supports_kernel_subshells = False


class EngineApp(LateEngine):
    """One engine of the pool."""

    def init_engine(self) -> None:  # noqa: D102 - as in the base class
        self.id = int(os.environ["MGPU_RANK"])
        super().init_engine()
        # The base puts the working folder first, where a file of the user's may hide a library.
        _take_kernels_path()

    async def complete_registration(self, *args: Any) -> None:  # noqa: D102 - as in the base
        await super().complete_registration(*args)
        self.engine = Engine(self.kernel.shell, self.loop.asyncio_loop, {"join": self.join})
        signal.signal(signal.SIGINT, self.engine.runner.on_sigint)
        self.engine.start()


def _take_kernels_path() -> None:
    path = json.loads(os.environ["MGPU_SYS_PATH"])
    if lifeline.URL_VARIABLE in os.environ:  # another host's libraries are its own
        path += [entry for entry in sys.path if entry not in path]
    sys.path[:] = path


def main() -> None:
    """Run the engine until it is told to end."""
    app.Kernel = EngineKernel
    _take_kernels_path()
    EngineApp.launch_instance()


if __name__ == "__main__":
    # Classes must be found by their import name, not as part of `__main__`, which is the user's.
    from jupyter_mgpu.transport import engine_app

    engine_app.main()
