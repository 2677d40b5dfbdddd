"""joblib on an engine: what asks for the engines there runs in place, one after the other."""

from types import ModuleType

from jupyter_mgpu.on_engine import imports


def install() -> None:
    """Register the backend "mgpu" as joblib's sequential one."""
    imports.after_import("joblib.parallel", _register)


def _register(parallel: ModuleType) -> None:
    parallel.register_parallel_backend("mgpu", parallel.SequentialBackend)
