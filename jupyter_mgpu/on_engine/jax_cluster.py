"""Lets `jax.distributed.initialize()` find the ranks of the pool by itself.

JAX reads the coordinator's address from the environment, but rank and number of processes only by
way of the launchers that it knows: subclasses of its ClusterEnv. This is one more.
"""

import os
from types import ModuleType
from typing import Any

from jupyter_mgpu.on_engine import imports


def install() -> None:
    """Make the pool known to JAX as soon as the user's code imports it."""
    imports.after_import("jax._src.clusters.cluster", _register)


def _register(module: ModuleType) -> None:
    base: Any = getattr(module, "ClusterEnv", None)
    if base is None:  # another JAX: initialize() takes the three numbers as arguments
        return

    class PoolCluster(base):  # type: ignore[misc]  # JAX is not typed here
        """The pool; as the first one it goes before a scheduler that it runs in."""

        name = "jupyter_mgpu"

        @classmethod
        def is_env_present(cls) -> bool:
            return "JAX_PROCESS_ID" in os.environ

        @classmethod
        def get_coordinator_address(cls, **_: Any) -> str:
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["JAX_NUM_PROCESSES"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["JAX_PROCESS_ID"])

        @classmethod
        def get_local_process_id(cls) -> int | None:
            # An engine uses all GPUs that it sees, but where it sees those of the others as well.
            sees_all = int(os.environ["LOCAL_WORLD_SIZE"]) > 1
            return int(os.environ["LOCAL_RANK"]) if sees_all else None
