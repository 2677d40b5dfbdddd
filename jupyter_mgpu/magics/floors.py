"""Says which package of this kernel is too old; the bounds are those of the installed package."""

import importlib.metadata
import sys

from IPython.core.error import UsageError
from packaging.requirements import Requirement

_MODULES = {"ipython": "IPython", "pyzmq": "zmq"}
"""What a package is imported as, where its name is another."""


def check() -> None:
    """Compare what this kernel runs with what is supported.

    Raises:
        UsageError: If a package is older than supported: in this kernel, which may still run what
            it has loaded before a newer version was installed, or on disk.
    """
    too_old = [
        (requirement, version)
        for requirement in _requirements()
        if (version := _running(requirement.name))
        and not requirement.specifier.contains(version, prereleases=True)
    ]
    if not too_old:
        return
    needs = " and ".join(str(requirement) for requirement, _ in too_old)
    runs = " and ".join(f"{requirement.name} {version}" for requirement, version in too_old)
    pins = " ".join(f"'{requirement}'" for requirement, _ in too_old)
    raise UsageError(
        f"jupyter_mgpu needs {needs}, but this kernel has {runs}: "
        f"run `%pip install {pins}` and restart the kernel."
    )


def _requirements() -> list[Requirement]:
    try:
        lines = importlib.metadata.requires("jupyter_mgpu") or []
    except importlib.metadata.PackageNotFoundError:
        return []  # used from a folder, never installed
    found = [Requirement(line) for line in lines]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def _running(name: str) -> str | None:
    """Return the version that is loaded, else the one on disk, else None."""
    module = sys.modules.get(_MODULES.get(name, name))
    loaded = getattr(module, "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
