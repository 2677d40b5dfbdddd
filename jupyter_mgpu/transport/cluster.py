"""Starts, replaces and ends the processes of one pool, through ipyparallel's launchers."""

import asyncio
import contextlib
import functools
import json
import os
import signal
import sys
import sysconfig
from pathlib import Path
from typing import Any

from jupyter_mgpu import children, curve
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import PoolStartError
from jupyter_mgpu.on_engine import guard, lifeline
from jupyter_mgpu.transport import hub, quiet_log
from jupyter_mgpu.transport.far_port import FarPort
from jupyter_mgpu.transport.placement import Order, Placement
from jupyter_mgpu.transport.processes import EngineProcess, LocalProcess

CONTROLLER_ARGS = [
    # The hub finishes a registration at the next heartbeat but one: 3 s by default. Short beats
    # need many permitted misses, or an engine that swaps for a moment is dropped.
    "--HeartMonitor.period=250",
    "--HeartMonitor.max_heartmonitor_misses=40",
    # Threads instead of one process for each scheduler, and no database of all results.
    "--IPController.use_threads=True",
    "--nodb",
    "--log-level=ERROR",
]

ENGINE_ARGS = [
    # The guard ends an engine whose owner died; a dead controller is no reason to.
    "--IPEngine.max_heartbeat_misses=0",
    # Signals go through the owner, which sees a death itself: no helper process.
    "--IPEngine.enable_nanny=False",
    "--log-level=ERROR",
]
ENGINE_MODULE = "jupyter_mgpu.transport.engine_app"

# Frozen modules make the debugger warn at each start.
QUIET_DEBUGGER = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}

CLIENT_S = 60.0  # who asks for a client waits less, and finds it when asking again
JOIN_S = 5.0


class PoolCluster:
    """The ipyparallel cluster of one pool: a controller, and one engine set per rank.

    All methods run in the owner's event loop.

    Args:
        folder: The pool's private folder (0700).
        url: Where engines find the owner.
        token: The secret that they must know.
        far: Where engines of other hosts find the owner, if there are any.
    """

    def __init__(self, folder: Path, url: str, token: str, far: FarPort | None = None) -> None:
        import ipyparallel as ipp

        from jupyter_mgpu.transport.launchers import PoolEngineSetLauncher

        self._folder = folder
        self._url = url
        self._token = token
        self._far = far
        self._launchers: list[Any] = []
        self._client: Any = None
        self._connecting = asyncio.Lock()
        self._cluster = ipp.Cluster(
            profile_dir=str(self._profile()),
            load_profile=False,
            delay=0,
            log=quiet_log.LOG,
            cluster_file="",  # would be written again by a late callback, after the clean-up
            shutdown_atexit=False,
            send_engines_connection_env=False,  # they run before there is a controller
            engines=PoolEngineSetLauncher,
        )

    def _profile(self) -> Path:
        profile = self._folder / "profile"
        for part in ("security", "log", "pid", "startup"):
            (profile / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        return profile

    @property
    def controller_pid(self) -> int | None:
        """The controller's process, None when it does not run.

        ipyparallel learns of its end later, by up to 40 ms with an old psutil.
        """
        controller = self._cluster.controller
        is_running = controller is not None and controller.running and _is_alive(controller.pid)
        return controller.pid if is_running else None

    @property
    def connection(self) -> dict[str, Any] | None:
        """What engines join the controller with; None when none runs."""
        file = self._security() / f"ipcontroller-{self._cluster.cluster_id}-engine.json"
        if self.controller_pid is None or not file.exists():
            return None
        connection: dict[str, Any] = json.loads(file.read_text())
        return connection

    async def ensure_controller(self) -> None:
        """Start a controller if none runs; engines do not join it before they are asked to."""
        async with self._connecting:
            if self._cluster.controller is not None and self.controller_pid is None:
                self._cluster.controller = None
                for file in self._security().glob("ipcontroller-*"):
                    file.unlink(missing_ok=True)
                self._client = None
            if self._cluster.controller is None:
                self._cluster.controller_args = [*CONTROLLER_ARGS, *_listening(self._far)]
                await self._cluster.start_controller(
                    controller_cmd=_python("jupyter_mgpu.transport.controller_app"),
                    environment=self._environment(),
                )
            try:
                await self._cluster.controller.get_connection_info()  # waits for its files
            except RuntimeError as error:
                raise PoolStartError(self._why_no_controller()) from error

    def _environment(self) -> dict[str, str]:
        return {
            "MGPU_OWNER": guard.owner_stamp(),
            "MGPU_CLEANUP": str(self._folder),
            "PYTHONPATH": children.python_path(),
            **QUIET_DEBUGGER,
        }

    def _security(self) -> Path:
        return self._folder / "profile" / "security"

    async def start_engine(
        self,
        rank: int,
        number: int,
        environment: dict[str, str],
        record: Path,
        placement: Placement | None = None,
    ) -> EngineProcess:
        """Start the engine of a rank.

        Args:
            rank: Its place in the pool; also its ipyparallel id.
            number: What tells it from all others that were started for this rank.
            environment: Its pin and rendezvous variables.
            record: The pool's record, removed by the guard when the owner is gone.
            placement: Where it runs, if not on this machine.
        """
        environment = {
            "MGPU_RANK": str(rank),
            "MGPU_START": str(number),
            "MGPU_TOKEN": self._token,
            **environment,
        }
        if placement is not None:
            return await self._start_far(rank, number, environment, placement)
        name = f"rank{rank}"
        self._cluster.engines.pop(name, None)
        settings = self._environment()
        settings["MGPU_CLEANUP"] += os.pathsep + str(record)
        settings |= {
            "MGPU_URL": self._url,
            "MGPU_SYS_PATH": json.dumps(sys.path),
            **environment,
        }
        await self._cluster.start_engines(
            1,
            engine_set_id=name,
            environment=settings,
            engine_cmd=_python(ENGINE_MODULE, *children.interpreter_flags()),
            engine_args=ENGINE_ARGS,
        )
        launcher = self._cluster.engines[name].launchers["0"]
        return LocalProcess(launcher, asyncio.get_running_loop())

    async def _start_far(
        self, rank: int, number: int, environment: dict[str, str], placement: Placement
    ) -> EngineProcess:
        """Start an engine on another host, through the launcher of its placement."""
        if self._far is None:
            raise PoolStartError(
                f"Rank {rank} should run on {placement.host}, but the pool has no port for that."
            )
        if placement.launcher not in self._launchers:
            self._launchers.append(placement.launcher)
        settings = {
            "MGPU_URL": self._far.url,
            lifeline.URL_VARIABLE: self._far.url,
            curve.KEYS_VARIABLE: self._far.keys,
            "MGPU_SYS_PATH": json.dumps(own_path()),
            "MGPU_FOLDER": str(Path.cwd()),
            **QUIET_DEBUGGER,
            **environment,
        }
        command = ("-P", "-m", ENGINE_MODULE, *ENGINE_ARGS)
        log = Path(environment["MGPU_LOG"])
        process = self._far.expect(f"{rank}.{number}", placement.host, log)
        try:
            order = Order(rank, number, settings, command, process.begun)
            process.launched = await placement.launcher.start(order)
        except BaseException:
            process.close()
            raise
        return process

    def notes(self) -> tuple[str, ...]:
        """Say what people should know of what has started the engines of other hosts."""
        notes = (launched.note() for launched in self._far.launched()) if self._far else ()
        return tuple(dict.fromkeys(note for note in notes if note is not None))

    def unregister(self, rank: int) -> None:
        """Tell ipyparallel's hub that the engine of a rank has ended."""
        if (connection := self.connection) is not None:
            hub.unregister(connection, rank)

    def output_of(self, rank: int) -> Path:
        """Return the file that an engine's process writes to before its output is captured."""
        log = self._folder / "profile" / "log"
        files = sorted(log.glob(f"ipengine-*-rank{rank}-*.log"))
        return files[-1] if files else log / "none"

    async def client(self, num_engines: int) -> Any:
        """Connect ipyparallel's own client to the controller, for `pool.client` and `%%px`.

        Args:
            num_engines: How many engines will join soon; it waits for them.
        """
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
        joined = self._client.wait_for_engines(num_engines, block=False, interactive=False)
        with contextlib.suppress(TimeoutError):  # it began a task, and joins when that has ended
            await asyncio.wait_for(asyncio.wrap_future(joined), JOIN_S)
        return self._client

    async def _connect(self) -> Any:
        """Make the client in a thread, as it waits for the controller's first answer."""
        import ipyparallel as ipp

        info = await self._cluster.controller.get_connection_info()
        make = functools.partial(
            ipp.Client, info["client"], cluster=self._cluster, timeout=CLIENT_S
        )
        making = asyncio.wrap_future(call_in_thread(make, "mgpu-client"))
        while not (await asyncio.wait({making}, timeout=0.1))[0]:
            if self.controller_pid is None:
                making.cancel()
                raise PoolStartError(self._why_no_controller())
        return making.result()

    def _why_no_controller(self) -> str:
        said: str = self._cluster.controller.get_output()
        last = said.rstrip().rpartition("\n")[2] or "It printed nothing"
        return (
            f"ipyparallel's controller ended at its start. {last}. Ask again for pool.client to "
            "start another one; %%spmd and parfeval need none."
        )

    async def stop(self) -> None:
        """End the controller; engines are ended by who started them."""
        if self._client is not None:
            self._client.close(linger=0)
            self._client = None
        pid = self.controller_pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while self.controller_pid is not None:
                await asyncio.sleep(0.005)
        for launcher in self._launchers:
            await launcher.close()


def _listening(far: FarPort | None) -> list[str]:
    """Say where the controller listens: in the open only to who has its key."""
    if far is None:
        return ["--ip=127.0.0.1"]
    return [f"--ip={far.address}", "--IPController.enable_curve=True"]


def _python(module: str, *flags: str) -> list[str]:
    """Run a module without the working folder on its path, where files may hide libraries."""
    return [sys.executable, *flags, "-P", "-m", module]


def own_path() -> list[str]:
    """Return what the notebook has on its path beside its Python's own libraries."""
    paths = sysconfig.get_paths()
    own = tuple(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [entry for entry in sys.path if not entry.startswith(own)]


def _is_alive(pid: int) -> bool:
    try:
        return guard.read_stat(pid)[0] != "Z"
    except ProcessLookupError:
        return False
