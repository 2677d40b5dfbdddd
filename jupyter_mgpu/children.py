"""What every child process of ours needs to find this package."""

import os
from pathlib import Path


def python_path() -> str:
    """Return the PYTHONPATH of a child: this package's folder first, then the user's own."""
    package_root = str(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
