"""How much of the user's data an engine holds: what an idle pool would lose."""

import sys
from collections.abc import Mapping
from typing import Any

from jupyter_mgpu.packing.loaded import loaded


def count_bytes(*namespaces: Mapping[str, Any]) -> int:
    """Count the bytes of values, roughly: arrays and tensors by their data, others by themselves.

    Memory that torch holds on the GPU counts as well, whoever refers to it.
    """
    seen: dict[int, int] = {}
    for namespace in namespaces:
        for name, value in list(namespace.items()):
            if not name.startswith("_"):
                seen[id(value)] = _size(value)
    return sum(seen.values()) + _gpu_bytes()


def _size(value: Any) -> int:
    try:
        return int(value.nbytes)
    except Exception:  # noqa: BLE001 - foreign objects may do anything
        return sys.getsizeof(value, 0)


def _gpu_bytes() -> int:
    torch = loaded("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.memory_allocated(place) for place in range(torch.cuda.device_count()))
