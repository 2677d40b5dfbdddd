"""What the repository promises and no other tool checks."""

import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import jupyter_mgpu

ROOT = Path(__file__).parents[1]
REGISTRIES = re.compile(
    r"pypi\.(org|io)|pythonhosted\.org|registry\.(npmjs|yarnpkg)|deb\.debian"
    r"|download\.pytorch\.org"
)
MACHINE_PATHS = re.compile(r"(?<![\w.~:/-])/(work|root|home|opt|mnt|Users)/\w")


@cache
def tracked_files() -> tuple[Path, ...]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}: {line.strip()}"
            for line in text.splitlines()
            if pattern.search(line)
        ]
    return found


def test_no_file_names_a_package_registry() -> None:
    assert lines_matching(REGISTRIES) == []


def test_no_file_names_a_path_of_one_machine() -> None:
    assert lines_matching(MACHINE_PATHS) == []


def test_the_two_commands_of_the_readme_are_in_the_makefile() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(
        r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )

    named = set(re.findall(r"\bmake ([\w-]+)", readme))

    assert {"demo", "test"} <= named
    assert named <= set(targets)


def test_ci_runs_make_test() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_every_constraint_is_an_exact_version(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]

    assert "torch==2.13.0" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []


def test_the_oldest_versions_are_the_lower_bounds_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = dict(
        line.lower().split("==")
        for line in (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )

    for requirement in project["dependencies"]:
        name, bound = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
        if name != "torch":
            assert f"{pins[name]}.".startswith(f"{bound}."), requirement


def test_the_version_is_the_newest_of_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[0] == project["version"]
    assert jupyter_mgpu.__version__ == project["version"]


def test_importing_the_package_takes_no_heavy_module_with_it() -> None:
    heavy = {"torch", "pynvml", "ipyparallel", "pandas", "matplotlib"}
    code = f"import sys, jupyter_mgpu\nprint(*{heavy} & set(sys.modules))"

    imported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert imported.stdout.split() == []


def test_a_public_name_means_the_same_however_often_it_is_used() -> None:
    code = (
        "import jupyter_mgpu as mgpu\n"
        "first = {name: getattr(mgpu, name) for name in mgpu.__all__}\n"
        "print(*[name for name in first if getattr(mgpu, name) is not first[name]])"
    )

    changed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert changed.stdout.split() == []
