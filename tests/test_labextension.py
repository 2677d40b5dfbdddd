"""How the JupyterLab extension is built, packed and found."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "labextension"
BUILT = ROOT / "jupyter_mgpu" / "labextension"
SHARE = "jupyter_mgpu-{version}.data/data/share/jupyter/labextensions/jupyter-mgpu"
BIN = Path(sys.executable).parent
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
packs = pytest.mark.skipif(
    tuple(map(int, importlib.metadata.version("hatchling").split(".")[:2])) < (1, 27),
    reason="this hatchling is too old for the package's metadata",
)


def built_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "sources.sha256"
    }


def test_the_lock_file_names_no_host_of_a_registry() -> None:
    lock = (SOURCE / "package-lock.json").read_text(encoding="utf-8")
    packages = json.loads(lock)["packages"]

    assert '"resolved"' not in lock
    assert [name for name, entry in packages.items() if name and "integrity" not in entry] == []


def test_the_extension_has_the_version_of_the_package() -> None:
    names = ["package.json", "package-lock.json"]
    versions = {json.loads((SOURCE / n).read_text(encoding="utf-8"))["version"] for n in names}

    assert versions == {VERSION}


@pytest.mark.timeout(400)
def test_a_build_in_another_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "labextension"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("node_modules", "lib"))
    # Not one link to the folder: what a link leads to would be named in the built files.
    shutil.copytree(SOURCE / "node_modules", copy / "node_modules", symlinks=True)
    views = Path("jupyter_mgpu", "widgets", "views")
    shutil.copytree(ROOT / views, tmp_path / "elsewhere" / views)

    built = subprocess.run(
        [BIN / "npm", "run", "build"],
        cwd=copy,
        env={**os.environ, "PATH": PATH},
        capture_output=True,
        text=True,
        check=False,
    )

    assert built.returncode == 0, built.stdout + built.stderr
    again, first = built_files(tmp_path / "elsewhere" / "jupyter_mgpu" / "labextension"), BUILT
    assert again == built_files(first), "stale: run make test, or pip install --editable ."


def test_jupyterlab_finds_the_extension_and_has_it_enabled() -> None:
    listed = subprocess.run(
        [BIN / "jupyter", "labextension", "list"],
        env={**os.environ, "PATH": PATH},
        capture_output=True,
        text=True,
        check=True,
    )

    text = re.sub(r"\x1b\[\d+m", "", listed.stdout + listed.stderr)
    assert f"jupyter-mgpu v{VERSION} enabled OK (python, jupyter_mgpu)" in text


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    assert _pack(ROOT, "sdist", folder).returncode == 0
    with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
        packed.extractall(folder, filter="data")
    return folder / f"jupyter_mgpu-{VERSION}"


def _pack(source: Path, target: str, into: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)],
        cwd=source,
        env={**os.environ, "PATH": PATH, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _files_of_wheel(folder: Path) -> list[str]:
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return wheel.namelist()


@packs
def test_a_wheel_made_from_the_source_archive_has_the_extension_without_npm(
    archive: Path, tmp_path: Path
) -> None:
    made = _pack(archive, "wheel", tmp_path, PATH=str(tmp_path))

    assert made.returncode == 0, made.stderr
    share = SHARE.format(version=VERSION)
    names = _files_of_wheel(tmp_path)
    assert {f"{share}/{name}" for name in built_files(BUILT)} <= set(names)
    assert f"{share}/install.json" in names
    assert [name for name in names if name.startswith("jupyter_mgpu/labextension/")] == []


@packs
def test_without_npm_the_build_says_what_is_missing_and_how_to_go_without(
    archive: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(archive, bare)
    shutil.rmtree(bare / "jupyter_mgpu" / "labextension")

    refused = _pack(bare, "wheel", tmp_path, PATH=str(tmp_path))
    made = _pack(bare, "wheel", tmp_path, PATH=str(tmp_path), MGPU_LABEXTENSION="optional")

    assert refused.returncode != 0
    assert "no npm is here" in refused.stderr
    assert "MGPU_LABEXTENSION=optional" in refused.stderr
    assert made.returncode == 0, made.stderr
    assert not [name for name in _files_of_wheel(tmp_path) if "/labextensions/" in name]
    assert "no npm is here" in (bare / "build" / "labextension-failure.txt").read_text()
