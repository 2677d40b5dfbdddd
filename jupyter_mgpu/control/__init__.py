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
from jupyter_mgpu.control.looking import OTHER_VERSION, SILENT_S, Answer, Look, look_at, state_of
from jupyter_mgpu.control.plain import plain

__all__ = [
    "OTHER_VERSION",
    "SILENT_S",
    "Answer",
    "Done",
    "FoundEngine",
    "FoundPool",
    "Look",
    "NoSuchPoolError",
    "cancel",
    "find_pool",
    "find_pools",
    "interrupt",
    "look_at",
    "named",
    "plain",
    "read_diary",
    "read_log",
    "request_stop",
    "restart",
    "state_of",
    "stop",
]
