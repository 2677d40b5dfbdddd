"""The engines follow the kernel's environment, folder and path, and edited modules."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_mgpu.on_engine import reload
from jupyter_mgpu.on_engine.reload import Reloader
from jupyter_mgpu.sending import follow
from jupyter_mgpu.sending.follow import Follow, may_follow

APPLY = """
import json, os, sys
from jupyter_mgpu.on_engine.reload import apply_follow
for line in sys.stdin:
    trouble = apply_follow(json.loads(line))
    known = {n: os.environ.get(n) for n in ("MINE", "HOME", "CUDA_VISIBLE_DEVICES")}
    print(json.dumps([trouble, os.getcwd(), known, sys.path]), flush=True)
"""


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Path]:
    """Lets a test change folder, path and variables of this process."""
    folder, path, environ = Path.cwd(), list(sys.path), dict(os.environ)
    yield tmp_path
    os.chdir(folder)
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environ)


class Engine:
    """A child process that applies what it is sent."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", APPLY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "3"},
        )

    def apply(self, state: Any) -> tuple[list[str], str, dict[str, str | None], list[str]]:
        """Apply a state; returns trouble, folder, variables and path."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(state) + "\n")
        self._process.stdin.flush()
        trouble, folder, known, path = json.loads(self._process.stdout.readline())
        return trouble, folder, known, path

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=20)


@pytest.fixture
def engine() -> Iterator[Engine]:
    started = Engine()
    yield started
    started.close()


def test_nothing_follows_where_nothing_changed() -> None:
    follow = Follow()

    assert follow.state() is None
    assert follow.delta() is None


def test_folder_path_and_variables_follow(surroundings: Path, engine: Engine) -> None:
    follow = Follow()
    os.chdir(surroundings)
    sys.path.insert(0, str(surroundings / "lib"))
    os.environ.update(MINE="secret", CUDA_VISIBLE_DEVICES="0,1")
    del os.environ["HOME"]

    trouble, folder, known, path = engine.apply(follow.state())

    assert trouble == []
    assert Path(folder) == surroundings.resolve()
    assert known == {"MINE": "secret", "HOME": None, "CUDA_VISIBLE_DEVICES": "3"}
    assert path[0] == str(surroundings / "lib")


def test_a_variable_set_back_in_the_kernel_is_set_back_on_the_engine(
    surroundings: Path, engine: Engine
) -> None:
    follow = Follow()
    home = os.environ["HOME"]
    os.environ["MINE"] = "1"
    os.environ["HOME"] = str(surroundings)
    engine.apply(follow.state())

    del os.environ["MINE"]
    os.environ["HOME"] = home
    _, _, known, _ = engine.apply(follow.state())

    assert known["MINE"] is None
    assert known["HOME"] == home


def test_a_rank_that_has_the_newest_state_is_sent_none(surroundings: Path) -> None:
    follow = Follow()
    os.chdir(surroundings)
    state = follow.delta()
    assert state is not None

    assert follow.delta(state["id"]) is None
    os.environ["MINE"] = "1"
    assert follow.delta(state["id"]) is not None


def test_a_folder_the_engine_cannot_enter_is_told_and_not_fatal(engine: Engine) -> None:
    state = {"id": "a", "environ": {}, "folder": "/no/such", "path": [], "start_path": []}

    trouble, folder, _, _ = engine.apply(state)

    assert "/no/such cannot be entered" in trouble[0]
    assert folder == str(Path.cwd())


@pytest.mark.parametrize(
    "name",
    ["CUDA_VISIBLE_DEVICES", "NVIDIA_X", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT",
     "TORCHELASTIC_RUN_ID", "GROUP_RANK", "JAX_PROCESS_ID", "MGPU_X", "IPP_X", "OMP_NUM_THREADS",
     "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PWD"],
)  # fmt: skip
def test_what_tells_engines_apart_does_not_follow(name: str) -> None:
    assert not may_follow(name)
    assert may_follow("HF_HOME")


def test_asking_again_compares_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(follow, "may_follow", lambda name: compared.append(name) or True)
    watch = Follow()
    monkeypatch.setenv("MINE", "1")
    state = watch.state()
    assert compared == ["MINE"]

    for _ in range(3):
        assert watch.state() is state

    assert compared == ["MINE"]


@pytest.fixture
def folder(surroundings: Path) -> Iterator[Path]:
    """A notebook's folder on the path, whose modules are forgotten afterwards."""
    os.chdir(surroundings)
    sys.path.insert(0, str(surroundings))
    before = set(sys.modules)
    yield surroundings
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(surroundings)):
            del sys.modules[name]


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    # The size may be equal, and the file system's clock coarse.
    stamp = file.stat().st_mtime_ns + 10**9 * (1 + len(text))
    os.utime(file, ns=(stamp, stamp))


def _load(name: str) -> Any:
    import importlib

    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_an_edited_module_is_loaded_again(folder: Path) -> None:
    _write(folder / "alpha.py", "def f(): return 1\n")
    module = _load("alpha")
    by_name = module.f
    reloader = Reloader()
    assert reloader.reload_changed() == []

    _write(folder / "alpha.py", "def f(): return 22\n")

    assert reloader.reload_changed() == ["alpha"]
    assert module.f() == 22
    assert by_name() == 22
    assert reloader.reload_changed() == []


def test_modules_that_use_an_edited_one_follow_it(folder: Path) -> None:
    (folder / "package").mkdir()
    _write(folder / "package" / "__init__.py", "")
    _write(folder / "package" / "inner.py", "LIMIT = 1\nclass C: pass\n")
    _write(folder / "outer.py", "from package.inner import LIMIT, C\ndef f(): return LIMIT\n")
    outer = _load("outer")
    reloader = Reloader()
    reloader.reload_changed()

    _write(folder / "package" / "inner.py", "LIMIT = 22\nclass C: pass\n")

    assert reloader.reload_changed() == ["package.inner", "outer"]
    assert outer.f() == 22


def test_a_syntax_error_in_an_edited_module_names_the_file_until_it_is_mended(
    folder: Path,
) -> None:
    _write(folder / "beta.py", "x = 1\n")
    module = _load("beta")
    reloader = Reloader()
    reloader.reload_changed()

    _write(folder / "beta.py", "x = = 2\n")
    for _ in range(2):
        with pytest.raises(SyntaxError) as caught:
            reloader.reload_changed()
        assert caught.value.filename == str(folder / "beta.py")
    _write(folder / "beta.py", "x = 33\n")

    assert reloader.reload_changed() == ["beta"]
    assert module.x == 33


def test_modules_elsewhere_and_installed_ones_are_left_alone(folder: Path) -> None:
    (folder / "site-packages").mkdir()
    sys.path.insert(0, str(folder / "site-packages"))
    _write(folder / "site-packages" / "gamma.py", "x = 1\n")
    _load("gamma")
    reloader = Reloader()
    reloader.reload_changed()

    _write(folder / "site-packages" / "gamma.py", "x = 22\n")

    assert reloader.reload_changed() == []


def test_a_module_imported_later_is_watched_as_well(folder: Path) -> None:
    reloader = Reloader()
    reloader.reload_changed()
    _write(folder / "delta.py", "x = 1\n")
    module = _load("delta")
    reloader.reload_changed()

    _write(folder / "delta.py", "x = 22\n")
    reloader.reload_changed()

    assert module.x == 22


def test_looking_for_edited_modules_looks_at_their_files_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(folder / "epsilon.py", "x = 1\n")
    _load("epsilon")
    reloader = Reloader()
    reloader.reload_changed()

    modules: list[str] = []
    files: list[str] = []
    stamp = reload._stamp
    monkeypatch.setattr(reload, "_file_of", lambda name, _: modules.append(name))
    monkeypatch.setattr(reload, "_stamp", lambda file: (files.append(file), stamp(file))[1])

    for _ in range(3):
        assert reloader.reload_changed() == []

    assert modules == []  # the table of modules is not gone through
    assert files == [str(folder / "epsilon.py")] * 3
