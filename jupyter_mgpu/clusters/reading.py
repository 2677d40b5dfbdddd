"""Turns one table of a clusters file into a description."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters import templates, values
from jupyter_mgpu.clusters.records import (
    NATIVE_KINDS,
    ClusterDescription,
    HostDescription,
    LauncherOptions,
    MpiOptions,
    SlurmOptions,
    SshOptions,
)
from jupyter_mgpu.clusters.values import Place, Reader
from jupyter_mgpu.errors import ClusterError

_NUMBER_OF_TASKS = re.compile(r"-n.*|--ntasks(=.*)?")
LOCAL_HOST = "local"
"""The host of this name is the kernel's own, so that pools may have ranks here and elsewhere."""

_OF_HOSTS: Mapping[str, Reader] = {
    "python": values.word,
    "folder": values.word,
    "environment": values.variables,
    "gpus": values.gpus,
}
_HOST: Mapping[str, Reader] = {
    "name": values.word,
    "ssh": values.word,
    "address": values.word,
    "engines": values.count,
    **_OF_HOSTS,
}
_CLUSTER: Mapping[str, Reader] = {
    "kind": values.word,
    "address": values.word,
    "start_timeout": values.seconds,
    **_OF_HOSTS,
}
_SSH: Mapping[str, Reader] = {
    "config": values.word,
    "port": values.port,
    "tunnel": values.flag,
    "options": values.texts,
}
_SLURM: Mapping[str, Reader] = {
    "partition": values.word,
    "account": values.word,
    "qos": values.word,
    "time": values.word,
    "options": values.texts,
    "template": values.text,
    "submit": values.one_of("auto", "sbatch", "srun"),
}
_MPI: Mapping[str, Reader] = {"command": values.word, "options": values.texts}
_LAUNCHER: Mapping[str, Reader] = {"settings": values.settings}


def read_cluster(file: Path, name: str, table: Any) -> ClusterDescription:
    """Read the description of one cluster.

    Args:
        file: The file that it stands in; paths in it are relative to the file's folder.
        name: Its name, the table's.
        table: What was written.

    Raises:
        ClusterError: If something in it is not allowed; it names file, key and value.
    """
    place = Place(str(file), name)
    kind = _kind(place, table)
    own = {"local": {}, "ssh": _SSH, "slurm": _SLURM, "mpi": _MPI}.get(kind, _LAUNCHER)
    common = _CLUSTER if kind != "local" else {"kind": values.word}
    if kind not in ("local", "ssh"):  # they choose the GPUs themselves
        common = {**common, "gpus": values.one_of("own", "none")}
    readers = {**common, **own, **({"hosts": _read_hosts} if kind == "ssh" else {})}
    _explain_keys_of_other_kinds(place, table, kind, readers)
    given = values.read_table(place, table, readers)
    description = ClusterDescription(
        name=name,
        kind=kind,
        options=_options(place, kind, {key: given[key] for key in own if key in given}),
        gpus=given.get("gpus"),
        python=given.get("python"),
        folder=given.get("folder"),
        environment=given.get("environment", {}),
        address=given.get("address"),
        start_timeout_s=given.get("start_timeout"),
        source=str(file),
    )
    if kind == "ssh":
        hosts = given.get("hosts", ())
        if not hosts:
            place.within("hosts").refuse([], f"kind ssh needs hosts, as in {EXAMPLE_HOSTS}")
        return replace(description, hosts=_with_defaults(description, hosts))
    return description


EXAMPLE_HOSTS = 'hosts = ["gpu1", "gpu2"]'


def launcher_names() -> list[str]:
    """List the launchers that ipyparallel and other packages register."""
    return sorted(entry_points(group="ipyparallel.engine_launchers").names)


def is_kind(kind: str) -> bool:
    """Tell whether engines can be asked of this: a launcher's name, or a class by its path."""
    return kind in NATIVE_KINDS or "." in kind or kind in launcher_names()


def _kind(place: Place, table: Any) -> str:
    if not isinstance(table, dict):
        place.refuse(table, f"a cluster is a table: write [{place.path}] above its lines")
    if "kind" not in table:
        # Hosts that are listed can only mean one kind.
        if "hosts" in table:
            return "ssh"
        raise ClusterError(
            f"{place.file}: [{place.path}] has no kind. Write one of: {', '.join(NATIVE_KINDS)}."
        )
    kind = values.word(place.within("kind"), table["kind"])
    if not is_kind(kind):
        kinds = [*NATIVE_KINDS, *(each for each in launcher_names() if each not in NATIVE_KINDS)]
        place.within("kind").refuse(
            kind,
            f"kinds are {', '.join(kinds)}, or a launcher's package.module.Class",
            kinds,
        )
    return kind


def _explain_keys_of_other_kinds(
    place: Place, table: Mapping[str, Any], kind: str, allowed: Mapping[str, Reader]
) -> None:
    of_kinds = {"ssh": {**_SSH, "hosts": _read_hosts}, "slurm": _SLURM, "mpi": _MPI}
    for key in table:
        owners = [other for other, readers in of_kinds.items() if key in readers]
        if key not in allowed and owners:
            raise ClusterError(
                f"{place.file}: {place.within(key).path} = {values.shown(table[key])} was written, "
                f"but {key} belongs to kind {' and '.join(owners)}, and this is of kind {kind}. "
                f"[{place.path}] may have: {', '.join(sorted(allowed))}."
            )


def _options(
    place: Place, kind: str, given: dict[str, Any]
) -> SshOptions | SlurmOptions | MpiOptions | LauncherOptions | None:
    folder = Path(place.file).parent
    if kind == "local":
        return None
    if kind == "ssh":
        if "config" in given:
            given["config"] = _file(place.within("config"), folder, given["config"])
        return SshOptions(**given)
    if kind == "slurm":
        template = given.get("template")
        if template is not None and "\n" not in template:
            given["template"] = _file(place.within("template"), folder, template).read_text()
        trouble = templates.trouble_of(given["template"]) if template is not None else None
        if trouble is not None:
            place.within("template").refuse(template, trouble)
        for word in given.get("options", ()):
            if _NUMBER_OF_TASKS.fullmatch(word):
                allowed = "the number of tasks is that of engines, as in %parpool 4"
                place.within("options").refuse(word, allowed)
        return SlurmOptions(**given)
    if kind == "mpi":
        if "-x" in given.get("options", ()):  # Open MPI takes variables in one way only
            allowed = 'variables of engines are written as environment = { NAME = "value" }'
            place.within("options").refuse("-x", allowed)
        return MpiOptions(**given)
    return LauncherOptions(**given)


def _file(place: Place, folder: Path, name: str) -> Path:
    path = folder / Path(name).expanduser()
    if not path.is_file():
        place.refuse(name, f"there is no file {path}")
    return path


def _read_hosts(place: Place, value: Any) -> tuple[HostDescription, ...]:
    if not isinstance(value, list):
        place.refuse(value, f"a list is needed, such as {EXAMPLE_HOSTS}")
    hosts = tuple(
        _read_host(Place(place.file, f"{place.path}[{number}]"), each)
        for number, each in enumerate(value)
    )
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            place.refuse(
                [each.name for each in hosts],
                f'"{name}" stands there twice. Give it `engines`, or each entry a name of its own',
            )
    return hosts


def _read_host(place: Place, value: Any) -> HostDescription:
    table = {"name": value} if isinstance(value, str) else value
    given = values.read_table(place, table, _HOST)
    name = given.get("name") or given.get("ssh")
    if name is None:
        place.refuse(value, 'a host needs a name, as in { name = "gpu1", gpus = "0-3" }')
    given = {"ssh": name, **given, "name": name, "is_local": name == LOCAL_HOST}
    return HostDescription(**given)


def _with_defaults(
    cluster: ClusterDescription, hosts: Sequence[HostDescription]
) -> tuple[HostDescription, ...]:
    """Fill in what the cluster says for all its hosts; what a host says itself wins."""
    return tuple(
        replace(
            host,
            gpus=host.gpus or cluster.gpus,
            python=host.python or (None if host.is_local else cluster.python),
            folder=host.folder or (None if host.is_local else cluster.folder),
            environment={**cluster.environment, **host.environment},
        )
        for host in hosts
    )
