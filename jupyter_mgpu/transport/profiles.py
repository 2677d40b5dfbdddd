"""Reads what an ipyparallel profile says of its cluster: the launcher, and its settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters import (
    ClusterDescription,
    HostDescription,
    LauncherOptions,
    MpiOptions,
    Options,
    SlurmOptions,
    SshOptions,
    templates,
)
from jupyter_mgpu.clusters.values import close_match
from jupyter_mgpu.errors import ClusterError

_NATIVE = {
    "LocalEngineSetLauncher": "local",
    "SSHEngineSetLauncher": "ssh",
    "SlurmEngineSetLauncher": "slurm",
    "MPIEngineSetLauncher": "mpi",
}


def describe_profile(name: str) -> ClusterDescription:
    """Describe the cluster of an ipyparallel profile (`ipython profile create --parallel NAME`).

    Args:
        name: The profile's name, without "profile_".

    Raises:
        ClusterError: If there is no such profile, or its settings cannot be read.
    """
    folder = _folder(name)
    import ipyparallel as ipp

    try:
        cluster = ipp.Cluster(profile_dir=str(folder), parent=None, shutdown_atexit=False)
        launcher = cluster.engine_launcher_class
    except Exception as error:  # what a profile's own code raises
        raise ClusterError(
            f"The profile {name!r} was asked for, but the settings in {folder} cannot be used: "
            f"{error}."
        ) from error
    kind = _NATIVE.get(launcher.__name__, f"{launcher.__module__}.{launcher.__name__}")
    found = _settings(launcher, cluster.config)
    options = _options(kind, found)
    template = options.template if isinstance(options, SlurmOptions) else None
    if template is not None and (trouble := templates.trouble_of(template)) is not None:
        raise ClusterError(
            f"The profile {name!r} was asked for, but of the batch_template in {folder}: {trouble}."
        )
    timeout = cluster.config.get("Cluster", {}).get("engine_timeout")
    return ClusterDescription(
        name=name,
        kind=kind,
        hosts=_hosts(found) if kind == "ssh" else (),
        options=options,
        python=found.get("remote_python"),
        environment={key: str(value) for key, value in found.get("environment", {}).items()},
        address=cluster.controller_location or _address(cluster.controller_ip),
        start_timeout_s=None if timeout is None else float(timeout),
        source=f"profile {folder}",
    )


def _folder(name: str) -> Path:
    from IPython.paths import get_ipython_dir

    base = Path(get_ipython_dir())
    folder = base / f"profile_{name}"
    if not folder.is_dir() or Path(name).name != name:
        names = sorted(p.name.removeprefix("profile_") for p in base.glob("profile_*"))
        raise ClusterError(
            f"The profile {name!r} was asked for, but {base} has: {', '.join(names) or 'none'}."
            f"{close_match(name, names)} Make one with `ipython profile create --parallel {name}`."
        )
    return folder


def _settings(launcher: type[Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Collect what the profile sets of a launcher, its own section above those of its bases."""
    found: dict[str, Any] = {}
    for section in reversed(launcher.__mro__):
        found |= dict(config.get(section.__name__, {}))
    return found


def _options(kind: str, found: Mapping[str, Any]) -> Options | None:
    if kind == "local":
        return None
    if kind == "ssh":
        return SshOptions(options=tuple(found.get("ssh_args", ())))
    if kind == "slurm":
        template = found.get("batch_template")
        if not template and "batch_template_file" in found:
            template = Path(found["batch_template_file"]).read_text()
        limit = found.get("timelimit")
        return SlurmOptions(
            partition=found.get("queue"),
            account=found.get("account"),
            qos=found.get("qos"),
            time=None if limit is None else str(limit),
            options=tuple(found.get("options", "").split()),
            template=template,
        )
    if kind == "mpi":
        words: list[str] = [*found.get("mpi_cmd", ["mpirun"]), *found.get("mpi_args", [])]
        return MpiOptions(words[0], tuple(words[1:]))
    return LauncherOptions(found)


def _hosts(found: Mapping[str, Any]) -> tuple[HostDescription, ...]:
    hosts = []
    for target, engines in found.get("engines", {}).items():
        settings = engines if isinstance(engines, dict) else {"n": engines}
        hosts.append(
            HostDescription(
                name=target,
                # ipyparallel writes a port as ssh does in its URLs only.
                ssh=f"ssh://{target}" if ":" in target else target,
                engines=settings.get("n", 1),
                python=settings.get("remote_python", found.get("remote_python")),
                environment=settings.get("environment", found.get("environment", {})),
            )
        )
    return tuple(hosts)


def _address(ip: str) -> str | None:
    return ip if ip not in ("", "*", "0.0.0.0") else None
