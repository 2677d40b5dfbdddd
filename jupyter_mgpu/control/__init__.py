"""Finds the pools of this user from any process, and interrupts, restarts and stops them.

A pool is asked through its owner's socket. Only when the owner has been silent for a second do
signals do what must work with a stopped kernel: interrupt and stop.
"""

from jupyter_mgpu.control.actions import Done, cancel, interrupt, request_stop, restart, stop
from jupyter_mgpu.control.found import (
    FoundEngine,
    FoundPool,
    NoSuchPoolError,
    find_pool,
    find_pools,
    named,
)
from jupyter_mgpu.control.logs import read_diary, read_log

__all__ = [
    "Done",
    "FoundEngine",
    "FoundPool",
    "NoSuchPoolError",
    "cancel",
    "find_pool",
    "find_pools",
    "interrupt",
    "named",
    "read_diary",
    "read_log",
    "request_stop",
    "restart",
    "stop",
]
