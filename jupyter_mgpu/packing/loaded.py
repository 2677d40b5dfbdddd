"""Which libraries are there, without importing them."""

import sys
from typing import Any


def loaded(name: str) -> Any:
    """Return a module if it was imported to its end; None also while a thread still imports it."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module
