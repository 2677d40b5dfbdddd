"""What a state says, apart from how that is drawn: a title, rows, sentences, plots."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.widgets.static import words

State = dict[str, Any]
Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot; a value that is None breaks it."""

    name: str
    steps: Sequence[float]
    values: Sequence[float | None]


@dataclass(slots=True)
class Report:
    """A view without a script.

    Attributes:
        title: What is shown, and how it is.
        notes: Sentences below it.
        rows: A table; equal keys in all rows.
        sentences: One per curve.
        plots: Lines that belong in one plot, by its name.
        diary: The end of what was printed.
        at: When it was made, in seconds since the epoch.
    """

    title: str
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    plots: dict[str, list[Line]] = field(default_factory=dict)
    diary: str = ""
    at: float | None = None


def report_of(state: State) -> Report:
    """Read a state of any kind."""
    report = _REPORTS[state["kind"]](state)
    report.at = state["at"]
    if state.get("notice"):
        report.notes.insert(0, state["notice"])
    return report


def _pool(state: State) -> Report:
    num_engines = len(state["engines"])
    engines = "1 engine" if num_engines == 1 else f"{num_engines} engines"
    tasks = f"tasks: {state['running']} running, {state['queued']} queued"
    return Report(
        f"Pool '{state['name']}': {engines}, {state['state']}; {tasks}",
        rows=[_engine(engine) for engine in state["engines"]],
    )


def _engine(engine: State) -> Row:
    what = "GPU" if engine["what"] == "gpu" else "CPU"
    proof = {True: " (verified)", False: " (not verified)"}.get(engine["proven"], "")
    return {
        "rank": str(engine["rank"]),
        "device": engine["device"] + proof,
        "state": engine["state"],
        "task": engine["task"] or "",
        "busy": f"{what} {words.reading(engine['utilization'], '%')}",
        "memory": words.memory(engine["memory"]),
        "pid": "" if engine["pid"] is None else str(engine["pid"]),
    }


def _gpus(state: State) -> Report:
    gpus = state["gpus"]
    title = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
    notes = [state["trouble"]] if state["trouble"] else []
    for host in ({"name": "Host", **state["host"]}, *state["hosts"]):
        trouble = f" {host['trouble']}" if host.get("trouble") else ""
        cpu = words.reading(host["cpu"], "%")
        notes.append(f"{host['name']}: CPU {cpu}, memory {words.memory(host['memory'])}.{trouble}")
    return Report(title, notes=notes, rows=[_gpu(gpu) for gpu in gpus])


def _gpu(gpu: State) -> Row:
    is_there = gpu["state"] != "lost"
    busy = words.reading(gpu["utilization"], "%") if is_there else "lost"
    stale = f", stale since {words.duration(gpu['stale_s'])}" if gpu["stale_s"] else ""
    users = "; ".join(user["words"] for user in gpu["users"]) or "nobody"
    return {
        "GPU": gpu["label"].removeprefix("GPU "),
        "name": gpu["name"] or words.UNKNOWN,
        "GPU busy": busy + stale,
        "memory": words.memory(gpu["memory"]),
        "power": words.reading(gpu["power"], "W"),
        "temperature": words.reading(gpu["temperature"], "°C"),
        "slowed by": ", ".join(gpu["throttle"] or []) or "-",
        "used by": users,
    }


def _tasks(state: State) -> Report:
    counts = ", ".join(f"{number} {name}" for name, number in state["counts"].items() if number)
    report = Report(
        f"Tasks: {counts or 'none'}", rows=[_task_row(task, state["at"]) for task in state["tasks"]]
    )
    if state["hidden"]:
        report.notes.append(f"{state['hidden']:,} more are not listed.")
    for task in state["tasks"]:
        curve = task["curve"]
        if curve is not None:
            steps = list(range(len(curve["values"])))
            line = Line(curve["name"], steps, curve["values"])
            report.sentences.append(f"{task['name']}: {_sentence(line, has_steps=False)}")
    if len(state["tasks"]) == 1:
        report.diary = state["tasks"][0]["diary"] or ""
    return report


def _task_row(task: State, at: float) -> Row:
    begin = task["started"]
    seconds = None if begin is None else max((task["finished"] or at) - begin, 0.0)
    return {
        "task": task["name"],
        "state": task["state"],
        "rank": "" if task["rank"] is None else str(task["rank"]),
        "time": "" if seconds is None else words.duration(seconds),
        "progress": words.progress(task["progress"]),
        "metrics": words.values(task["metrics"]),
        "error": task["error"] or "",
    }


def _training(state: State) -> Report:
    where = f" on {state['environment']}" if state["environment"] else ""
    report = Report(f"{state['name']}: {state['state']}{where}", notes=list(state["notes"]))
    row = {
        "step": words.count(state["step"], state["steps"]),
        "epoch": words.count(state["epoch"], state["epochs"]),
        "time": words.duration(state["elapsed_s"]),
        "learning rate": words.number(state["rate"]),
        "samples/s": words.number(state["samples_per_s"]),
    }
    report.rows = [{name: text for name, text in row.items() if text != words.UNKNOWN}]
    if state["eta_s"] is not None:
        report.rows[0]["left"] = words.duration(state["eta_s"])
    if state["outcome"]:
        report.notes.append(f"Training ended: {state['outcome']}.")
    if state["error"]:
        report.notes.append(state["error"])
    for curve in state["curves"]:
        line = Line(curve["name"], curve["steps"], curve["values"])
        if curve["name"] != "rate":
            report.sentences.append(_sentence(line))
            report.plots.setdefault(_plot_of(curve["name"]), []).append(line)
    report.diary = state["diary"] or ""
    return report


def _compare(state: State) -> Report:
    trainings = state["trainings"]
    report = Report(f"{len(trainings)} trainings")
    for training in trainings:
        row = {"training": training["name"], "state": training["state"]}
        row["step"] = words.count(training["step"], training["steps"])
        best = training["best"]
        row["best"] = f"{best['name']} {words.number(best['value'])}" if best else words.UNKNOWN
        report.rows.append(row)
        for curve in training["curves"]:
            if curve["name"] != "rate":
                line = Line(training["name"], curve["steps"], curve["values"])
                report.sentences.append(f"{training['name']}: {_sentence(line, curve['name'])}")
                report.plots.setdefault(curve["name"], []).append(line)
    return report


def _plot_of(name: str) -> str:
    return name.removeprefix("validation_")


def _sentence(line: Line, name: str | None = None, *, has_steps: bool = True) -> str:
    """Say what a curve shows: where it begins, where it is, its range."""
    points = [
        (step, value)
        for step, value in zip(line.steps, line.values, strict=True)
        if value is not None
    ]
    name = (name or line.name).replace("_", " ")
    if not points:
        return f"{name}: no finite value."
    (_, first), (step, last) = points[0], points[-1]
    low, high = min(value for _, value in points), max(value for _, value in points)
    where = f" at step {step:,}" if has_steps else ""
    return (
        f"{name}: {words.number(last)}{where}; from {words.number(first)}, "
        f"between {words.number(low)} and {words.number(high)}."
    )


_REPORTS: dict[str, Callable[[State], Report]] = {
    "pool": _pool,
    "gpus": _gpus,
    "tasks": _tasks,
    "training": _training,
    "compare": _compare,
}


def columns(rows: Iterable[Row]) -> list[str]:
    """Return the keys of rows that have a text in some row."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if any(row.get(key) for row in rows)]
