"""Pools that outlive their kernel: an owner in a process of its own, the keeper.

The path of a task of such a pool::

    kernel: Pool -> KeptOwner -> Connection ... Connection -> Kernels -> OwnerLoop :keeper

A kernel is attached by one connection to the keeper, and no more than one at a time is. Its end is
seen as the end of the connection, whatever has ended it.
"""

from jupyter_mgpu.keeping.kept_owner import KeptOwner
from jupyter_mgpu.keeping.kernels import Kernels

__all__ = ["KeptOwner", "Kernels"]
