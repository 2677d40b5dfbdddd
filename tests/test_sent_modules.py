"""Modules beside the notebook on an engine whose host does not see its folder."""

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from far_pools import Loopback, far_plan, far_pool
from ssh_hosts import Hosts, why_not

import jupyter_mgpu as mgpu
from jupyter_mgpu.clusters import ClusterDescription, HostDescription, SshOptions
from jupyter_mgpu.engines import HostPlace
from jupyter_mgpu.on_engine import sent_modules
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.transport.placement import Placement

HIDE = 'mount -t tmpfs none "$0" && exec "$@"'
"""Run by a shell that is alone in a mount namespace."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The notebook's folder, which only this process sees."""
    folder = tmp_path_factory.mktemp("beside")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield folder


@pytest.fixture(scope="module")
def _pool(folder: Path) -> Iterator[Pool]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    launcher = Loopback(prefix=("unshare", "--mount", "sh", "-c", HIDE, str(folder)))
    plan = far_plan(0, Placement("elsewhere", launcher), HostPlace(0, 1))
    environment = {**plan.environment, sent_modules.VARIABLE: "sent"}
    with far_pool([replace(plan, environment=environment)]) as pool:
        yield pool


@pytest.fixture
def pool(_pool: Pool, folder: Path) -> Pool:
    assert _pool.submit(os.listdir, str(folder)).result(60) == []
    return _pool


def written(folder: Path, name: str, source: str) -> Path:
    """Write a module beside the notebook."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    importlib.invalidate_caches()
    return file


def imported(name: str) -> ModuleType:
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def test_a_function_of_a_module_beside_the_notebook_runs_there(pool: Pool, folder: Path) -> None:
    written(folder, "areas.py", "import shapes\ndef area(x): return shapes.square(x)\n")
    written(folder, "shapes.py", "def square(x): return x * x\n")

    assert pool.submit(imported("areas").area, 3).result(60) == 9


def test_the_newest_version_runs(pool: Pool, folder: Path) -> None:
    written(folder, "user.py", "from used import value\ndef read(): return value()\n")
    written(folder, "used.py", "def value(): return 1\n")
    read = imported("user").read
    assert pool.submit(read).result(60) == 1

    written(folder, "used.py", "def value(): return 2\n")
    assert pool.submit(read).result(60) == 2

    written(folder, "used.py", "def value(): return 3\n")
    assert list(mgpu.spmd(read, pool=pool)) == [3]


def test_packages_and_their_modules_are_found(pool: Pool, folder: Path) -> None:
    written(folder, "whole/__init__.py", "from .part import one\n")
    written(folder, "whole/part.py", "one = 1\n")
    written(folder, "bare/inner/leaf.py", "two = 2\n")

    def add() -> int:
        import bare.inner.leaf
        import whole

        return whole.one + bare.inner.leaf.two

    assert pool.submit(add).result(60) == 3


def test_what_there_is_nowhere_is_not_found(pool: Pool) -> None:
    def find() -> None:
        import there_is_no_such_module  # noqa: F401

    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        pool.submit(find).result(60)


def test_an_error_names_the_line_of_the_module(pool: Pool, folder: Path) -> None:
    written(folder, "faulty.py", "def fail():\n    raise ValueError('from beside')\n")

    with pytest.raises(ValueError, match="from beside") as raised:
        pool.submit(imported("faulty").fail).result(60)

    assert "faulty.py" in "".join(raised.value.__notes__)


@pytest.mark.ssh
def test_a_pool_over_ssh_finds_out_that_a_folder_is_not_shared(
    ssh_hosts: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = HostDescription("hosta", "hosta", gpus="none", engines=1)
    options = SshOptions(config=ssh_hosts.config)
    monkeypatch.chdir(ssh_hosts.hidden)
    monkeypatch.syspath_prepend("")
    written(ssh_hosts.hidden, "at_home.py", "def where(): return 'at home'\n")
    where = imported("at_home").where

    with mgpu.parpool(
        cluster=ClusterDescription("lab", "ssh", hosts=(host,), options=options), name="apart"
    ) as pool:
        assert pool.submit(os.listdir, str(ssh_hosts.hidden)).result(60) == []
        assert pool.submit(where).result(60) == "at home"

    assert "hosta does not see the notebook's folder" in capsys.readouterr().out
