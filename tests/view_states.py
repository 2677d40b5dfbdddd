"""States of views as a kernel sends them: what the tests of the browser side draw."""

import math
from datetime import UTC, datetime
from typing import Any

State = dict[str, Any]
GIB = 2**30
NOW = datetime.now(UTC).timestamp()
HOSTILE = '<img src=x onerror="window.hacked=true"><b>bold</b> \' & `$(x)` {name}'


def common(kind: str, **values: Any) -> State:
    return {"version": 1, "kind": kind, "id": f"{kind}-1", "at": NOW, "final": False} | {
        "notice": None,
        **values,
    }


def reading(value: float | None, reason: str | None = None) -> State:
    return {"value": value, "reason": reason}


def memory(used: float | None, total: float | None, reserved: float | None = None) -> State:
    """Sizes in GiB; without `used` the reason is that the driver does not tell."""
    sizes = {"used": used, "total": total, "reserved": reserved}
    found = {name: None if size is None else int(size * GIB) for name, size in sizes.items()}
    return found | {"reason": "not supported on MIG" if used is None else None}


def _jitter(number: float) -> float:
    """A number from -1 to 1 that looks like chance and is always the same."""
    return 2 * (math.sin(number * 12.9898) * 43758.5453 % 1) - 1


def series(phase: float, count: int = 120, level: float = 90.0) -> State:
    """Work with short pauses, as of a training that validates at times."""
    values = [
        round(max(0.0, (8 if (n + 11 * phase) % 37 < 4 else level) + 5 * _jitter(n + phase)))
        for n in range(count)
    ]
    return {"step_s": 1.0, "values": values}


def engine(rank: int, **values: Any) -> State:
    return {
        "rank": rank,
        "device": f"GPU {rank} H200",
        "uuid": f"GPU-6d0e{rank:04x}-1c1f-45aa-9d2b-3f1b7c0a11{rank:02x}",
        "proven": True,
        "state": "busy",
        "task": f"train resnet-{18 + 16 * (rank % 3)}",
        "task_id": f"task-{rank}",
        "pid": 41_000 + rank,
        "utilization": reading(round(88 + 8 * math.sin(rank))),
        "memory": memory(40 + 5.5 * rank % 80, 139.8, 0.6),
        "what": "gpu",
        "utilization_history": series(rank),
    } | values


def cpu_engine(rank: int, **values: Any) -> State:
    return engine(
        rank,
        device=f"CPU {rank}",
        uuid=None,
        proven=None,
        utilization=reading(7),
        memory=memory(0.4, 31.2),
        what="cpu",
        **values,
    )


def pool(num_engines: int = 4, **values: Any) -> State:
    engines = [engine(rank) for rank in range(num_engines)]
    if num_engines > 2:
        engines[1] |= {"state": "idle", "task": None, "task_id": None, "utilization": reading(0)}
    return (
        common(
            "pool",
            name="main",
            state="busy",
            started=NOW - 2470,
            notebook="train.ipynb",
            queued=3,
            running=max(0, num_engines - 1),
            engines=engines,
        )
        | values
    )


def gpu(index: int, **values: Any) -> State:
    is_ours = index % 4 != 2
    users = [{"words": f"rank {index} of pool main", "pool": "main", "rank": index}]
    return {
        "label": f"GPU {index}",
        "index": index,
        "uuid": f"GPU-6d0e{index:04x}-1c1f-45aa-9d2b-3f1b7c0a11{index:02x}",
        "name": "NVIDIA H200",
        "state": "ok",
        "stale_s": None,
        "utilization": reading(92 - index if is_ours else 0),
        "memory": memory(61.2 - index if is_ours else 0.0, 139.8, 0.6),
        "power": reading(640 - 9 * index if is_ours else 78),
        "power_limit": reading(700),
        "temperature": reading(71 - index % 7 if is_ours else 34),
        "throttle": None,
        "users": [user | {"memory": int(60.1 * GIB)} for user in users] if is_ours else [],
        "utilization_history": series(index) if is_ours else {"step_s": 1.0, "values": [0] * 120},
        "memory_history": {
            "step_s": 1.0,
            "values": [float(min(n, 60)) if is_ours else 0 for n in range(120)],
        },
    } | values


def gpus(count: int = 4, **values: Any) -> State:
    return (
        common(
            "gpus",
            trouble=None,
            host={"cpu": reading(23), "memory": memory(112.4, 2015.0)},
            hosts=[],
            gpus=[gpu(index) for index in range(count)],
        )
        | values
    )


def task(number: int, state: str, **values: Any) -> State:
    is_begun = state != "queued"
    has_ended = state not in ("queued", "running", "stopping")
    return {
        "id": f"task-{number}",
        "name": f"train lr={0.1 / (number + 1):.4f}",
        "pool": "main",
        "state": state,
        "rank": number % 4 if is_begun else None,
        "created": NOW - 900,
        "started": NOW - 724 if is_begun else None,
        "finished": NOW - 12 if has_ended else None,
        "progress": 0.62 if state == "running" else None,
        "eta_s": 440.0 if state == "running" else None,
        "metrics": {"loss": 0.2143, "epoch": 31} if is_begun else {},
        "curve": {"name": "loss", "values": [2.3 * 0.96**n + 0.2 for n in range(80)]}
        if is_begun
        else None,
        "diary": "epoch 31 of 50\nloss 0.2143\n" if is_begun else "",
        "error": "OutOfMemoryError: CUDA out of memory on rank 1 (GPU 3).\n  in step 12"
        if state == "failed"
        else None,
    } | values


EVERY = ["running", "running", "queued", "queued", "finished", "failed", "cancelled"]


def tasks(states: list[str] | None = None, **values: Any) -> State:
    states = EVERY if states is None else states
    names = ("queued", "running", "finished", "failed", "cancelled")
    return (
        common(
            "tasks",
            counts={name: states.count(name) for name in names},
            tasks=[task(number, state) for number, state in enumerate(states)],
            hidden=0,
        )
        | values
    )


def curve(name: str, length: int, *, validation: bool = False, rate: float = 1.0) -> State:
    stride = 50 if validation else 1
    steps = list(range(stride, length + 1, stride))
    noise = 0.0 if validation else 0.22

    def value(step: int) -> float:
        t = step / length
        wobble = noise * _jitter(step) * (1 - 0.6 * t)
        if "accuracy" in name:
            return round(0.95 - 0.85 * math.exp(-5 * rate * t) + wobble / 4, 4)
        return round((2.2 * math.exp(-4 * rate * t) + 0.2) * (1 + wobble) + 0.05 * validation, 4)

    return {
        "name": name,
        "validation": validation,
        "steps": steps,
        "values": [value(step) for step in steps],
    }


def curves(length: int = 1000, rate: float = 1.0) -> list[State]:
    return [
        curve("loss", length, rate=rate),
        curve("accuracy", length, rate=rate),
        curve("validation_loss", length, validation=True, rate=rate),
        curve("validation_accuracy", length, validation=True, rate=rate),
    ]


def training(length: int = 1000, **values: Any) -> State:
    return (
        common(
            "training",
            name="resnet-50",
            task_id="task-7",
            pool="main",
            state="running",
            environment="4 x NVIDIA H200 (GPU 0 to 3), DDP over NCCL, bfloat16",
            epoch=5,
            epochs=8,
            step=length,
            steps=length * 8 // 5,
            started=NOW - 724,
            elapsed_s=724.0,
            eta_s=434.0,
            rate=0.00073,
            samples_per_s=11_482.0,
            outcome=None,
            error=None,
            diary="epoch 4 of 8: loss 0.2611\nepoch 5 of 8: loss 0.2143\n",
            notes=["A batch of 512 is divided into 128 per rank."],
            curves=curves(length),
            epoch_steps=[1 + length // 5 * n for n in range(5)],
            best={"step": length - 50, "name": "validation_loss", "value": 0.2561},
        )
        | values
    )


def compare(count: int = 4, length: int = 1000, **values: Any) -> State:
    states = ["running", "finished", "running", "failed", "queued"]
    return (
        common(
            "compare",
            metrics=["loss", "accuracy"],
            trainings=[
                {
                    "name": f"lr={0.3 / 2**number:.4g}",
                    "state": states[number % 5],
                    "curves": curves(length, 0.5 + 0.35 * number),
                    "best": {
                        "step": length - 100 + number,
                        "name": "validation_loss",
                        "value": round(0.25 + 0.3 * math.exp(-2 * (0.5 + 0.35 * number)), 4),
                    },
                    "step": length,
                    "steps": length * 2,
                }
                for number in range(count)
            ],
        )
        | values
    )


ALL = {"pool": pool, "gpus": gpus, "tasks": tasks, "training": training, "compare": compare}


def unpacked(value: Any) -> Any:
    """A state as it was before it went into a file, where lists of numbers are texts."""
    if isinstance(value, list):
        return [unpacked(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _numbers(one)
        if name in ("values", "steps", "epoch_steps") and isinstance(one, str)
        else unpacked(one)
        for name, one in value.items()
        if name != "packed"
    }


def _numbers(text: str) -> list[float | None]:
    return [None if part == "-" else float(part) for part in text.split(",")] if text else []
