"""Lets child processes of an engine have what was defined in the notebook.

`multiprocessing` with its spawn or forkserver method sends names of `__main__` by reference; the
child's `__main__` is not the notebook, and a DataLoader worker ended with an AttributeError.
"""

import types
from multiprocessing.reduction import ForkingPickler
from typing import Any

from jupyter_mgpu import packing


def install() -> None:
    """Send functions and classes of the notebook to child processes by value."""
    ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign] # looked up by name


def _reduce(_pickler: Any, obj: Any) -> Any:
    is_code = isinstance(obj, type | types.FunctionType)
    if is_code and getattr(obj, "__module__", None) == "__main__":
        return packing.unpack, ([bytes(frame) for frame in packing.pack(obj)],)
    return NotImplemented
