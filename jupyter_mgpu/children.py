"""What every child process of ours needs to be like this one, and to find this package."""

import os
from pathlib import Path


def python_path() -> str:
    """Return the PYTHONPATH of a child: this package's folder first, then the user's own."""
    package_root = str(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))


def interpreter_flags() -> list[str]:
    """Repeat this process's own interpreter flags, such as -X and -W."""
    import subprocess

    return [flag for flag in subprocess._args_from_interpreter_flags() if flag != "-I"]  # type: ignore[attr-defined] # noqa: SLF001 - the stdlib's own way to spawn an equal interpreter
