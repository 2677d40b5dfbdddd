"""ipyparallel's local launchers, with the end of an engine left to the owner."""

from ipyparallel.cluster.launcher import LocalEngineLauncher, LocalEngineSetLauncher


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
