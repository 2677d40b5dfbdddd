"""Random numbers that depend on a loop's seed and an item's number, and on nothing else."""

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

from jupyter_mgpu.on_engine import imports
from jupyter_mgpu.packing.loaded import loaded

_torch_seed: int | None = None  # of the item that runs now
_is_hooked = False


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Give the generators the states back at the end that they had before: all of the process's."""
    global _torch_seed
    import numpy as np

    outer = _torch_seed
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_states = _torch_states()
    try:
        yield
    finally:
        _torch_seed = outer
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        _restore_torch(*torch_states)


def seed_item(seed: int, index: int) -> None:
    """Seed Python's, NumPy's and torch's global generators for one item of a loop.

    torch (on the CPU and on all GPUs) is seeded as soon as it is imported, if the item does that.
    """
    global _torch_seed
    import numpy as np

    sequence = np.random.SeedSequence(seed, spawn_key=(index,))
    words = sequence.generate_state(16, np.uint32)
    random.seed(words[:8].tobytes())
    np.random.seed(words[8:14])
    _torch_seed = int.from_bytes(words[14:].tobytes(), "little") >> 1
    torch = loaded("torch")
    if torch is not None:
        _seed_torch(torch)
    elif not _is_hooked:
        _hook_torch()


def _hook_torch() -> None:
    global _is_hooked
    _is_hooked = True
    imports.after_import("torch", _seed_torch)


def _seed_torch(torch: Any) -> None:
    if _torch_seed is None:
        return
    torch.default_generator.manual_seed(_torch_seed)
    if torch.version.cuda or torch.version.hip:  # takes effect at once, or when CUDA is first used
        torch.cuda.manual_seed_all(_torch_seed)


def _torch_states() -> tuple[Any, list[Any]]:
    torch = loaded("torch")
    if torch is None:
        return None, []
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.default_generator.get_state(), on_gpus


def _restore_torch(on_cpu: Any, on_gpus: list[Any]) -> None:
    if on_cpu is None:
        return
    torch = sys.modules["torch"]
    torch.default_generator.set_state(on_cpu)
    if on_gpus:
        torch.cuda.set_rng_state_all(on_gpus)
