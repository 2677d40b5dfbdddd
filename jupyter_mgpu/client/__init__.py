"""The kernel's side of one pool: what goes to its owner, and what becomes of the owner's events.

submit -> Submission -> owner -> an engine
owner -> Inbox -> TaskFutures (futures) | Listeners (cells) | PoolEvents (the pool itself)
"""

from jupyter_mgpu.client.ended_task import EndedTask, first_line
from jupyter_mgpu.client.engine_values import EngineValues
from jupyter_mgpu.client.executor import PoolExecutor
from jupyter_mgpu.client.inbox import Inbox
from jupyter_mgpu.client.listeners import Listener, Listeners
from jupyter_mgpu.client.pool_events import PoolEvents
from jupyter_mgpu.client.submission import (
    Submission,
    TaskChoices,
    check_call,
    name_of,
    pack_call,
)
from jupyter_mgpu.client.task_futures import TaskFutures

__all__ = [
    "EndedTask",
    "EngineValues",
    "Inbox",
    "Listener",
    "Listeners",
    "PoolEvents",
    "PoolExecutor",
    "Submission",
    "TaskChoices",
    "TaskFutures",
    "check_call",
    "first_line",
    "name_of",
    "pack_call",
]
