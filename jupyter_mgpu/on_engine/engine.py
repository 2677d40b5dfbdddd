"""One engine, put together: what it knows, runs, shows and answers."""

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jupyter_mgpu import curve, packing
from jupyter_mgpu.clusters import versions
from jupyter_mgpu.on_engine import (
    constants,
    context,
    failure,
    guard,
    jax_cluster,
    lifeline,
    nested_joblib,
    process_group,
    resident,
    sent_modules,
    spawning,
    streams,
    warning_filters,
)
from jupyter_mgpu.on_engine.link import EngineLink
from jupyter_mgpu.on_engine.namespace import EngineNamespace
from jupyter_mgpu.on_engine.namespace.summary import describe
from jupyter_mgpu.on_engine.requests import Requests
from jupyter_mgpu.on_engine.runner import Runner
from jupyter_mgpu.wire import Frame, Header

STILL_S = 0.05
"""Two looks at the main thread this far apart tell whether it moves."""


# Before the kernel's import path is taken over, which may have other versions.
_INSTALLED = versions.facts() if lifeline.URL_VARIABLE in os.environ else {}


class Engine:
    """This process as an engine of a pool; its settings come from `MGPU_*` variables.

    Args:
        shell: The IPython shell whose namespace is the user's.
        loop: The main thread's event loop.
        answers: Further questions of the owner, by name, and what answers them.
    """

    def __init__(
        self,
        shell: Any,
        loop: asyncio.AbstractEventLoop,
        answers: Mapping[str, Callable[..., Any]],
    ) -> None:
        variables = os.environ
        self._rank = int(variables["MGPU_RANK"])
        self._loop = loop
        self._shell = shell
        self._device = variables.get("MGPU_DEVICE", "cpu")
        name = f"{self._rank}.{variables['MGPU_START']}"
        self._link = EngineLink(
            variables["MGPU_URL"],
            name,
            variables.pop("MGPU_TOKEN"),  # user code and its children need not have it
            loop,
            variables.pop(curve.KEYS_VARIABLE, None),
        )
        self._namespace = EngineNamespace(shell.user_ns, shell.transform_cell)
        self._context = context.EngineContext(
            self._rank,
            int(variables["WORLD_SIZE"]),
            self._device,
            self._link.emit,
            self._namespace,
            shell,
            self._link.store.place,
            Requests(name, self._link.emit, lambda: self.runner.running),
        )
        context.enter(self._context)
        packing.set_device(self._device)
        self.output = streams.TaskOutput(self._link.emit, log_fd=log_descriptor(), rank=self._rank)
        self.runner = Runner(self._context, shell, self._namespace, self.output, loop)
        self._answers: dict[str, Callable[..., Any]] = {
            **answers,
            "facts": _facts,
            "stack": self._stack,
            "settle": self._settle,
            "status": self._status,
            "changed": lambda names: sorted(self._namespace.changed(names)),
            "summary": self._summary,
            "abort_if_still": self._abort_if_still,
            "release": lambda name: self._context.kept.pop(name, None) and None,
            "resident_bytes": lambda: resident.count_bytes(
                self._shell.user_ns, self._context.kept, constants.values()
            ),
        }

    def start(self) -> None:
        """Install the hooks, connect to the owner and say hello."""
        # Libraries such as Lightning refuse to run on many devices where they see a prompt.
        for prompt in ("ps1", "ps2"):
            sys.__dict__.pop(prompt, None)
        warning_filters.apply(os.environ.get(warning_filters.VARIABLE, "[]"))
        process_group.install()
        spawning.install()
        nested_joblib.install()
        jax_cluster.install()
        sent_modules.install()
        self.output.install(self._shell)
        self._shell.user_ns.update(
            rank=self._rank, world_size=self._context.world_size, device=self._device
        )
        self._link.start(
            self._on_work,
            self._on_control,
            {"rank": self._rank, "pid": os.getpid(), "start_time": guard.start_time(os.getpid())},
        )

    def _on_work(self, header: Header, frames: list[Frame]) -> None:
        if header["op"] in ("run", "free"):
            self.runner.submit(header, frames)
        elif header["op"] == "comm":  # in order: the next cell sees a slider as the user left it
            self.output.on_comm(header, frames)

    def _on_control(self, header: Header, frames: list[Frame]) -> None:
        operation = header["op"]
        if operation == "interrupt":
            self.runner.interrupt(header["task"])
            self._context.requests.interrupt(header["task"])
        elif operation == "answer":
            self._context.requests.answered(header, frames)
        elif operation == "request_stop":
            self.runner.request_stop(header["task"], header.get("after", "step"))
        elif operation == "rpc":
            self._answer(header)

    def _answer(self, header: Header) -> None:
        reply: Header = {"op": "reply", "id": header["id"]}
        try:
            reply["value"] = self._answers[header["name"]](**header["args"])
        except BaseException as error:  # noqa: BLE001 - every request gets a reply
            reply["failure"] = failure.describe(error)
        self._link.reply(reply, [])

    def _settle(self, local_rank: int) -> None:
        """Take a place on this host, where engines of the pool run that were started before."""
        os.environ["MGPU_LOCAL_RANK"] = str(local_rank)

    def _summary(self, names: list[str]) -> dict[str, Any]:
        kept = {name: self._context.kept[name] for name in names if name in self._context.kept}
        others = [name for name in names if name not in kept]
        return {
            **self._namespace.summary(others),
            **{name: describe(value) for name, value in kept.items()},
        }

    def _status(self) -> dict[str, Any]:
        return {
            "task": self.runner.running,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "threads": threading.active_count(),
            "group": process_group.state(),
        }

    def _stack(self) -> dict[str, Any]:
        return {
            "task": self.runner.running,
            "frames": self.runner.main_stack(),
            "group": process_group.state(),
        }

    def _abort_if_still(self, task: str) -> dict[str, Any]:
        """Abort the collectives of a task whose main thread does not move any more.

        While data flows an abort can leave gloo waiting for ever, hence the two looks.
        """
        before = process_group.state()
        time.sleep(STILL_S)
        after = process_group.state()
        if self.runner.running != task:
            return {"aborted": False}
        is_importing = bool(after.get("importing"))
        self._link.emit({"op": "importing", "task": task, "is_under_way": is_importing}, [])
        if is_importing or not process_group.is_still(before, after):
            return {"aborted": False}
        return process_group.abort(after["cell"])


def _facts(file: str) -> dict[str, Any]:
    """Say what is installed here, whether this is the folder that was wanted, what is in a file."""
    wanted = Path(os.environ.get("MGPU_FOLDER") or ".").expanduser()
    word = None
    with contextlib.suppress(OSError):
        word = Path(file).read_text()
    has_folder = wanted.is_dir() and wanted.samefile(Path.cwd())
    return {**_INSTALLED, "has_folder": has_folder, "word": word}


def log_descriptor() -> int:
    """Open the rank's log file for appending; -1 without one."""
    path = os.environ.get("MGPU_LOG")
    if not path:
        return -1
    return os.open(Path(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
