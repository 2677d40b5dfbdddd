"""Starts engines by any other launcher of ipyparallel, one set for each rank."""

import contextlib
import importlib
import inspect
import shutil
import signal
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters import ClusterDescription, LauncherOptions
from jupyter_mgpu.clusters.commands import python_of
from jupyter_mgpu.clusters.values import close_match
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import ClusterError, PoolStartError
from jupyter_mgpu.on_engine import orders
from jupyter_mgpu.transport import quiet_log
from jupyter_mgpu.transport.launch_sets import launch_environment
from jupyter_mgpu.transport.placement import Order


class OtherLauncher:
    """Starts each engine by a launcher of its own; see `placement.Launcher`.

    Args:
        cluster: Names the launcher, and has its settings.

    Raises:
        ClusterError: If there is no such launcher, or it has no such settings.
    """

    def __init__(self, cluster: ClusterDescription) -> None:
        self._cluster = cluster
        self._class = _find(cluster)
        options = cluster.options
        self._settings = dict(options.settings) if isinstance(options, LauncherOptions) else {}
        names = sorted(self._class.class_trait_names(config=True))
        for name in self._settings:
            if name not in names:
                raise ClusterError(
                    f"{cluster.place}: the setting {name!r} was given, but {cluster.kind} has: "
                    f"{', '.join(names)}.{close_match(name, names)}"
                )
        self._folder: Path | None = None
        self._started: list[OtherLaunched] = []

    async def start(self, order: Order) -> "OtherLaunched":  # noqa: D102 - as in Launcher
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="mgpu-"))
            (self._folder / "log").mkdir()
        name = f"rank{order.rank}-{order.number}"
        traits = {
            "engine_cmd": [python_of(self._cluster)],
            "engine_args": list(order.command),
            "engine_set_id": name,
            "profile_dir": str(self._folder),
            "log": quiet_log.LOG,
            "environment": {
                **launch_environment(self._cluster),
                **orders.fold([{**order.environment, "MGPU_LOCAL_RANK": "0"}]),
            },
        }
        if "batch_file_name" in self._class.class_trait_names():
            traits["batch_file_name"] = str(self._folder / f"{name}.sh")
        try:
            launcher = self._class(**{**traits, **self._settings})
            begun = launcher.start(1)
            if inspect.isawaitable(begun):
                await begun
        except Exception as error:
            raise PoolStartError(
                f"The launcher {self._cluster.kind} could not start rank {order.rank}: {error}."
            ) from error
        launched = OtherLaunched(launcher)
        self._started.append(launched)
        await order.begun  # in a queue for as long as it takes
        return launched

    async def close(self) -> None:
        """Stop what was started."""
        for launched in self._started:
            await launched.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class OtherLaunched:
    """An engine that was started by such a launcher."""

    def __init__(self, launcher: Any) -> None:
        self._launcher = launcher

    def kill(self) -> None:  # noqa: D102 - as in Launched
        call_in_thread(lambda: self._launcher.signal(signal.SIGKILL), "mgpu-launcher-kill")

    async def explain(  # noqa: D102 - as in Launched
        self, _silent: str | None, _silent_s: float, /
    ) -> str | None:
        return None

    def note(self) -> str | None:  # noqa: D102 - as in Launched
        return None

    async def stop(self) -> None:
        """Have the launcher take its job out of the queue."""
        with contextlib.suppress(Exception):  # it has ended by itself, as it should
            stopping = self._launcher.stop()
            if inspect.isawaitable(stopping):
                await stopping


def _find(cluster: ClusterDescription) -> Any:
    found = {each.name: each for each in entry_points(group="ipyparallel.engine_launchers")}
    module, _, name = cluster.kind.rpartition(".")
    try:
        if cluster.kind in found:
            return found[cluster.kind].load()
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ClusterError(f"The launcher {cluster.kind} cannot be imported: {error}.") from error
