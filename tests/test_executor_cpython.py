"""CPython's own tests of executors, those that apply, where this Python has them installed.

Not taken over: what asks for a number of workers, looks at processes or their standard names, or
expects that one lost worker breaks the executor. tests/test_executor.py has the same hazards.
"""

import contextlib
import importlib
import unittest
from typing import Any

import pytest

from jupyter_mgpu.errors import EngineDiedError, PackingError
from jupyter_mgpu.pool import Pool

ERRORS: dict[str, tuple[type[BaseException], ...]] = {
    "BrokenProcessPool": (EngineDiedError, PackingError, SystemExit),
    "PicklingError": (PackingError,),
}
"""What we raise where CPython's executors raise this."""


class EnginesMixin:
    """Runs a class of CPython's tests on a pool."""

    worker_count = 2

    @pytest.fixture(autouse=True)
    def _give_pool(self, pool: Pool) -> None:
        self.pool = pool

    def setUp(self) -> None:
        self.executor = self.executor_type()

    def tearDown(self) -> None:
        self.executor.shutdown()

    def executor_type(self, **_: Any) -> Any:
        return self.pool.executor()

    def get_context(self) -> None:
        """Say which kind of processes; there is one only."""

    def _check_crash(self, error: Any, function: Any, *args: Any, **_: Any) -> None:
        with self.pool.executor() as executor:
            future = executor.submit(function, *args)
            with pytest.raises(ERRORS.get(error.__name__, error)):
                future.result(60)


CHOSEN = {
    ("executor", "ExecutorTest"): (
        "test_submit",
        "test_submit_keyword",
        "test_map",
        "test_map_exception",
        "test_map_timeout",
        "test_map_buffersize_type_validation",
        "test_map_buffersize_value_validation",
        "test_map_buffersize",
        "test_map_buffersize_on_empty_iterable",
        "test_map_buffersize_without_iterable",
        "test_shutdown_race_issue12456",
        "test_no_stale_references",
        "test_free_reference",
    ),
    ("test_process_pool", "ProcessPoolExecutorTest"): ("test_map_chunksize",),
    ("test_wait", "WaitTests"): (),
    ("test_as_completed", "AsCompletedTests"): (),
    ("test_shutdown", "ExecutorShutdownTest"): (
        "test_run_after_shutdown",
        "test_hang_issue12364",
        "test_cancel_futures",
    ),
    ("test_deadlock", "ExecutorDeadlockTest"): (
        "test_error_at_task_pickle",
        "test_exit_at_task_unpickle",
        "test_error_at_task_unpickle",
        "test_crash_at_task_unpickle",
        "test_crash_during_func_exec_on_worker",
        "test_exit_during_func_exec_on_worker",
        "test_error_during_func_exec_on_worker",
        "test_crash_during_result_pickle_on_worker",
        "test_exit_during_result_pickle_on_worker",
        "test_error_during_result_pickle_on_worker",
        "test_error_during_result_unpickle_in_result_handler",
        "test_exit_during_result_unpickle_in_result_handler",
    ),
}
"""Which tests of which class; all of them where none is named."""


def find(module: str, name: str) -> Any:
    """Find a class of CPython's tests; they were one module until Python 3.11."""
    for path in (f"test.test_concurrent_futures.{module}", "test.test_concurrent_futures"):
        with contextlib.suppress(ModuleNotFoundError, AttributeError):
            return getattr(importlib.import_module(path), name)
    return None


def adopt() -> dict[str, type]:
    """Make a class of tests from each that this Python has."""
    adopted = {}
    for (module, name), tests in CHOSEN.items():
        source = find(module, name)
        if source is not None:
            others = {other for other in dir(source) if other.startswith("test_")} - set(tests)
            without = dict.fromkeys(others if tests else ())
            bases = (EnginesMixin, source, unittest.TestCase)
            adopted[f"Test{name}"] = type(f"Test{name}", bases, without)
    return adopted


globals().update(adopt())


def test_this_python_has_tests_of_executors() -> None:
    if not any(name.startswith("Test") for name in globals()):
        pytest.skip("this Python was installed without test.test_concurrent_futures")
