"""Private Jupyter folders for the whole run, a pool of two CPU engines, a notebook kernel."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["gpu_stubs", "host_duo", "ssh_hosts"]

_home = Path(tempfile.mkdtemp(prefix="mgpu-test-"))
for _name in (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "IPYTHONDIR",
    "MPLCONFIGDIR",
    "MGPU_LEASE_DIR",
):
    os.environ[_name] = str(_home / _name.lower())
    (_home / _name.lower()).mkdir()
os.environ["JUPYTER_PLATFORM_DIRS"] = "1"


def pytest_unconfigure() -> None:
    shutil.rmtree(_home, ignore_errors=True)


@pytest.fixture(scope="module")
def own_runtime_folder() -> Iterator[None]:
    """Let servers and kernels of this module see each other's pools, and no others."""
    before = os.environ["JUPYTER_RUNTIME_DIR"]
    # Short: socket paths below it must stay under 108 bytes.
    os.environ["JUPYTER_RUNTIME_DIR"] = folder = tempfile.mkdtemp(prefix="mgpu-run-")
    yield
    os.environ["JUPYTER_RUNTIME_DIR"] = before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _pool():
    from jupyter_mgpu.start import parpool

    pool = parpool(2, name="tests")
    yield pool
    pool.shutdown(wait_for_tasks=False)


@pytest.fixture
def pool(_pool) -> Iterator:
    """Two CPU engines, both idle."""
    from notebooks import wait_until

    def is_ready() -> bool:
        return all(engine.state == "idle" for engine in _pool.engines)

    wait_until(is_ready, 60, "idle engines")
    yield _pool
    for future in _pool.tasks():
        future.cancel()


@pytest.fixture(scope="module")
def trio() -> Iterator:
    """Three CPU engines that train."""
    from jupyter_mgpu.start import parpool

    pool = parpool(3, name="trio")
    yield pool
    pool.shutdown(wait_for_tasks=False)


@pytest.fixture(scope="module")
def nb() -> Iterator:
    """A notebook with the extension loaded and a pool of two CPU engines."""
    from notebooks import notebook

    with notebook() as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu")
        opened.check("%parpool 2")
        yield opened
