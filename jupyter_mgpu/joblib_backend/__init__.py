"""joblib, and so scikit-learn, on the engines: `joblib.parallel_config(backend="mgpu")`.

`%load_ext jupyter_mgpu` registers it. joblib is imported by its users only.
"""

from types import ModuleType
from typing import Any

from jupyter_mgpu.on_engine import context, imports

NAME = "mgpu"


def register_joblib() -> None:
    """Let `joblib.parallel_config(backend="mgpu")` run on the engines; for plain scripts.

    joblib may be imported before or after it.

    Example:
        >>> with joblib.parallel_config(backend="mgpu"):
        ...     GridSearchCV(SVC(), grid).fit(X, y)
    """
    if context.current() is None:  # on an engine it is registered as joblib's sequential one
        imports.after_import("joblib.parallel", _register)


def _register(parallel: ModuleType) -> None:
    parallel.register_parallel_backend(NAME, _backend)


def _backend(**settings: Any) -> Any:
    from jupyter_mgpu.joblib_backend.backend import EnginesBackend

    return EnginesBackend(**settings)
