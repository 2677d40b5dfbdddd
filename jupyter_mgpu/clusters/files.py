"""Finds a cluster by its name: in a project's file, in the user's, or among the built-in ones."""

import os
import tomllib
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters.reading import EXAMPLE_HOSTS, is_kind, launcher_names, read_cluster
from jupyter_mgpu.clusters.records import (
    ClusterDescription,
    LauncherOptions,
    MpiOptions,
    Options,
    SlurmOptions,
)
from jupyter_mgpu.clusters.values import close_match, shown
from jupyter_mgpu.errors import ClusterError

PROJECT_FILE = "mgpu-clusters.toml"
_BUILT_IN: dict[str, Options | None] = {
    "local": None,
    "slurm": SlurmOptions(),
    "mpi": MpiOptions(),
}


def user_file() -> Path:
    """Return where the user's own clusters are described, whether the file is there or not."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "jupyter_mgpu" / "clusters.toml"


def project_file() -> Path | None:
    """Return the nearest project file: in the working folder, or above it up to the home.

    Outside the home a file above the working folder counts if it is this user's or root's: what a
    stranger writes into /tmp, say, must not name programs that we run.
    """
    folder, home = Path.cwd(), Path.home()
    for candidate in (folder, *folder.parents):
        file = candidate / PROJECT_FILE
        if file.is_file() and (
            candidate == folder
            or candidate.is_relative_to(home)
            or file.stat().st_uid in (os.getuid(), 0)
        ):
            return file
        if candidate == home:
            break
    return None


def find(name: str) -> ClusterDescription:
    """Return the description of a cluster.

    Args:
        name: A table of a clusters file, "local", "slurm", "mpi", or the name of an ipyparallel
            launcher. The project's file wins over the user's, and both over what is built in.

    Raises:
        ClusterError: If there is none of that name, or its description is wrong.
    """
    tables = _read_files()
    for file, found in tables.items():
        if name in found:
            return read_cluster(file, name, found[name])
    if name in _BUILT_IN:
        return ClusterDescription(name, name, options=_BUILT_IN[name])
    if name == "ssh":
        raise ClusterError(
            f"The cluster 'ssh' was asked for, but no file says which hosts it has. {_example()}"
        )
    if is_kind(name):
        return ClusterDescription(name, name, options=LauncherOptions())
    known = list_names()
    where = f"{' and '.join(map(str, tables))} and built in" if tables else "built in"
    raise ClusterError(
        f"The cluster {name!r} was asked for, but {where} there are: {', '.join(known)}."
        f"{close_match(name, known)} {_example()}"
    )


def list_names() -> list[str]:
    """List the clusters that have a name, the described ones first."""
    described = [name for tables in _read_files().values() for name in tables]
    return list(dict.fromkeys([*described, *_BUILT_IN, *launcher_names()]))


def _read_files() -> dict[Path, dict[str, Any]]:
    """Read the files that are there, the project's first."""
    files = [file for file in (project_file(), user_file()) if file is not None]
    return {file: _read_file(file) for file in files if file.exists()}


def _read_file(file: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ClusterError(f"{file} cannot be read: {error}. {_example()}") from error
    for key, value in found.items():
        if not isinstance(value, dict):
            raise ClusterError(
                f"{file}: {key} = {shown(value)} stands outside a table. Each cluster is one: "
                f"write [NAME] above its lines."
            )
    return found


def _example() -> str:
    return (
        f"Describe one in {user_file()}, or for a project in {PROJECT_FILE}:\n"
        f'[lab]\nkind = "ssh"\n{EXAMPLE_HOSTS}'
    )
