"""What a keeper tells a kernel that attaches: the pool, its engines, its tasks."""

import os
from collections.abc import Mapping
from typing import Any

from jupyter_mgpu.keeping.messages import describe_status
from jupyter_mgpu.owner.owner_loop import OwnerLoop


def take(core: OwnerLoop, request: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a kept pool as it is now."""
    return {
        "pid": os.getpid(),
        "request": dict(request),
        "record_path": str(core.record_path),
        "status": describe_status(core.status()),
        "engines": [
            {
                "rank": engine.rank,
                "device": engine.place,
                "log": str(engine.log),
                "gpu_uuids": list(engine.plan.gpu_uuids),
            }
            for engine in core.engines.values()
        ],
        "tasks": [
            core.journal.describe_whole(task)
            for task in core.scheduler.tasks.values()
            if task.header.get("recorded")
        ],
        "ended": list(core.journal.ended_whole),
    }
