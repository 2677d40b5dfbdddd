"""ipyparallel's launchers, with the end of an engine left to the owner."""

import subprocess
from collections.abc import Mapping
from typing import Any

from ipyparallel.cluster.launcher import (
    LauncherError,
    LocalEngineLauncher,
    LocalEngineSetLauncher,
    MPIEngineSetLauncher,
    SlurmEngineSetLauncher,
)

from jupyter_mgpu.on_engine.launcher_names import tells_a_rank


class PoolEngineLauncher(LocalEngineLauncher):
    """Starts one engine; the owner notices its end on a pidfd and reads its exit code itself."""

    def _start_waiting(self) -> None:
        """Start no thread: it would take the exit code away, and cost one thread an engine."""

    def reap(self) -> int | None:
        """Take the exit code of an engine that has ended; negative for a signal."""
        return self._popen_process.poll()  # type: ignore[no-any-return]


class PoolEngineSetLauncher(LocalEngineSetLauncher):
    """Starts the engine set of one rank."""

    launcher_class = PoolEngineLauncher


class PoolSlurmLauncher(SlurmEngineSetLauncher):
    """Submits a job of engines, and says why Slurm refuses one."""

    def _run_command(self, command: list[str], **options: Any) -> str:
        done = subprocess.run(
            command,
            env=outside_allocations(options["env"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LauncherError((done.stderr or done.stdout).strip())
        return done.stdout


class PoolStepLauncher(MPIEngineSetLauncher):
    """Starts engines by srun or mpirun; engines use no MPI unless the user's code does."""

    @property
    def program(self) -> list[str]:
        """What each rank runs: without ipyparallel's flag that imports MPI."""
        return self.engine_cmd  # type: ignore[no-any-return]

    def _start_waiting(self) -> None:
        """Start no thread: the owner watches the process itself."""

    def reap(self) -> int | None:
        """Take the exit code when it has ended."""
        return self._popen_process.poll()  # type: ignore[no-any-return]


def outside_allocations(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what Slurm has told this process of its own allocation."""
    kept = ("SLURM_CONF",)
    return {
        name: value
        for name, value in environment.items()
        if name in kept or not (name.startswith(("SLURM_", "SLURMD_")) or tells_a_rank(name))
    }
