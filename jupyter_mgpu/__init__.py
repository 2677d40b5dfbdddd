"""Interactive multi-GPU work in Jupyter: a pool of engines with one pinned GPU each.

Names are imported when they are first used: importing the package is quick, and touches neither
torch nor a GPU.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "CancelledError": "futures",
    "Composite": "composite",
    "Constant": "constants",
    "DataQueue": "data_queues",
    "MgpuError": "errors",
    "Pool": "pool",
    "TaskFuture": "futures",
    "after_all": "callbacks",
    "after_each": "callbacks",
    "as_completed": "futures",
    "batch": "batches",
    "cancel_all": "calls",
    "classify": "training.predicting",
    "compare": "widgets.compare",
    "count_bytes": "traffic",
    "current_pool": "start",
    "doctor": "diagnosis",
    "fetch_next": "futures",
    "gpu_count": "gpus",
    "gpu_table": "snapshots",
    "parfeval": "calls",
    "parfeval_on_all": "calls",
    "parfor": "loops",
    "parpool": "start",
    "predict": "training.predicting",
    "register_joblib": "joblib_backend",
    "report": "on_engine.context",
    "snapshot": "snapshots",
    "spmd": "blocks",
    "TrainingOptions": "on_engine.training.options",
    "train": "training.fit",
    "stop_requested": "on_engine.context",
    "wait": "futures",
}
_MODULES = {"comm": "on_engine.comm", "errors": "errors", "tasks": "tasks"}

__all__ = ["__version__", *sorted(_HOMES), *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value  # found at once from now on
        return value
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Register the magics: `%load_ext jupyter_mgpu`. It injects no names."""
    from jupyter_mgpu.magics import register

    register(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Tell a Jupyter server what to load: nothing of it is imported in a kernel."""
    from jupyter_mgpu.server.app import MgpuExtension

    return [{"module": "jupyter_mgpu", "app": MgpuExtension}]
