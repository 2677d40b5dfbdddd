"""The state of a training's view: its curves, how far it is, and what can be done about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.widgets.curves import MAX_POINTS, Curves, shortened
from jupyter_mgpu.widgets.states import State, parts

LIVE = ("queued", "running", "stopping")
DIARY_CHARS = 4000
MAX_NOTES = 20


@dataclass(slots=True)
class TrainingFacts:
    """What is known of a training beside its curves.

    Attributes:
        name: What people call it.
        state: Queued, running, stopping, finished, failed or cancelled.
        environment: What it runs on, in words.
        task_id: Of its future, if it has one.
        pool: The pool's name, if it runs on one.
        step: How many steps are done.
        steps: How many there will be, if that is known.
        epochs: How many epochs there will be, if that is known.
        started: When, in seconds since the epoch.
        finished: Likewise.
        steps_per_s: How fast it was lately.
        batch_size: Samples per step over all ranks, if known.
        outcome: Why it ended, in words.
        error: The first line of what it raised.
        notes: Sentences on how its options were read.
        diary: The end of what it printed.
        controls: What can be asked of it.
        place: How a Jupyter server finds it.
    """

    name: str
    state: str
    environment: str | None = None
    task_id: str | None = None
    pool: str | None = None
    step: int | None = None
    steps: int | None = None
    epochs: int | None = None
    started: float | None = None
    finished: float | None = None
    steps_per_s: float | None = None
    batch_size: int | None = None
    outcome: str | None = None
    error: str | None = None
    notes: list[str] = field(default_factory=list)
    diary: str | None = None
    controls: Sequence[str] = ()
    place: parts.Place | None = None


def training_state(facts: TrainingFacts, curves: Curves, limit: int = MAX_POINTS) -> State:
    """Describe a training.

    Args:
        facts: What is known of it.
        curves: What it has reported.
        limit: At most so many points of each curve.
    """
    is_live = facts.state in LIVE
    step = facts.step if facts.step is not None else curves.last_step
    share = step / facts.steps if step is not None and facts.steps else None
    elapsed_s = _elapsed_s(facts)
    samples_per_s = (
        facts.steps_per_s * facts.batch_size if facts.steps_per_s and facts.batch_size else None
    )
    return {
        **parts.frame("training", final=not is_live),
        "name": facts.name,
        "task_id": facts.task_id,
        "pool": facts.pool,
        "state": facts.state,
        "environment": facts.environment,
        "epoch": curves.epoch,
        "epochs": facts.epochs,
        "step": step,
        "steps": facts.steps,
        "started": facts.started,
        "elapsed_s": elapsed_s,
        "eta_s": parts.eta_s(share, elapsed_s) if is_live else None,
        "rate": curves.last_values().get("rate"),
        "steps_per_s": _short(facts.steps_per_s),
        "samples_per_s": _short(samples_per_s),
        "outcome": facts.outcome,
        "error": facts.error,
        "notes": facts.notes[-MAX_NOTES:],
        "diary": facts.diary,
        "controls": list(facts.controls) if is_live else [],
        "place": facts.place if is_live else None,
        "curves": curves.state(limit),
        "epoch_steps": curves.epoch_starts(),
        "best": best_of(curves),
    }


def compare_state(trainings: Iterable[State], *, notice: str | None = None) -> State:
    """Describe several trainings, to be drawn in one plot.

    Args:
        trainings: A state of each, as `training_state` makes it.
        notice: A sentence that stands above the view.
    """
    kept = ("name", "state", "curves", "best", "step", "steps")
    reduced = [{key: training[key] for key in kept} for training in trainings]
    names = dict.fromkeys(curve["name"] for training in reduced for curve in training["curves"])
    is_final = all(training["state"] not in LIVE for training in reduced)
    return {
        **parts.frame("compare", final=is_final, notice=notice),
        "metrics": list(names),
        "trainings": reduced,
    }


def best_of(curves: Curves) -> dict[str, Any] | None:
    """Return the smallest loss so far, that of the validation data if there is any."""
    for name in ("validation_loss", "loss"):
        lowest = curves.lowest(name)
        if lowest is not None:
            return {"step": int(lowest[0]), "name": name, "value": lowest[1]}
    return None


def _elapsed_s(facts: TrainingFacts) -> float | None:
    if facts.started is None:
        return None
    end = facts.finished if facts.finished is not None else parts.now()
    return round(max(end - facts.started, 0.0), 1)


def _short(value: float | None) -> float | None:
    return None if value is None else shortened(value)
