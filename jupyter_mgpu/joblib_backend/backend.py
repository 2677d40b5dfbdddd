"""joblib's batches as calls on the engines of a pool."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from joblib.parallel import (
    AutoBatchingMixin,
    BatchedCalls,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from jupyter_mgpu.client import PoolExecutor
from jupyter_mgpu.joblib_backend.arrays import OnceCopied
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.start import pool_named


class EnginesBackend(AutoBatchingMixin, ParallelBackendBase):
    """Runs joblib's batches on the engines; nested calls run there by threads, as joblib rules.

    Args:
        pool: Where to run, or its name; the current pool by default, started if there is none.
        **settings: joblib's own.
    """

    default_n_jobs = -1
    supports_retrieve_callback = True

    def __init__(self, pool: Pool | str | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._chosen = pool
        self._executor: PoolExecutor
        self._arrays = OnceCopied()

    @property
    def _pool(self) -> Pool:
        return self._chosen if isinstance(self._chosen, Pool) else pool_named(self._chosen)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many engines a request for jobs means."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs == 1:
            return 1
        size = self._pool.size
        n_jobs = self.default_n_jobs if n_jobs is None else n_jobs
        return min(n_jobs, size) if n_jobs > 0 else max(size + 1 + n_jobs, 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Prepare for a call of joblib's Parallel; return the number of its jobs."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        pool = self._pool
        ranks = () if n_jobs == pool.size else pool.idle_first(n_jobs)
        self._executor = pool.executor(ranks=ranks, is_recorded=False)
        return n_jobs

    def start_call(self) -> None:
        """Begin a call of joblib's Parallel."""
        self._arrays = OnceCopied()

    def stop_call(self) -> None:
        """End a call of joblib's Parallel."""
        self._arrays = OnceCopied()

    def submit(self, func: BatchedCalls, callback: Callable[[Any], Any]) -> Future[Any]:
        """Run a batch of calls, and then the callback."""
        func.items = self._arrays.items(func.items)
        try:
            future: Future[Any] = self._executor.submit(func)
        except RuntimeError as error:  # the pool has ended; joblib loses what is raised here
            future = Future()
            future.set_exception(error)
        future.add_done_callback(callback)
        return future

    apply_async = submit  # joblib before 1.5 calls it so

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        """Return a batch's results, or raise what it raised."""
        return future.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002 - joblib's signature
        """End all batches, also those that run: one has failed, or the cell was stopped."""
        self._executor.end_all()

    def terminate(self) -> None:
        """Let go of the engines; the pool goes on."""
        self.reset_batch_stats()
