"""Four trainings shown in one page: what drawing them takes of the browser's main thread.

Each has four curves of 1,000 points and changes twice a second, as fast as a kernel sends states.
"""

import math
import statistics
import sys
from pathlib import Path
from typing import Any

import measure
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from view_page import CHROMIUM, FLAGS, Views, serve
from view_states import training

NUM_TRAININGS, NUM_CURVES, NUM_POINTS = 4, 4, 1000
SECONDS = 6
CHANGE = """states => {
    let number = 0;
    setInterval(() => {
        number += 1;
        for (const model of Object.values(models)) model.set(states[number % states.length]);
    }, 500);
}"""


def state_at(number: int) -> dict[str, Any]:
    """Return a training some steps later: no point stays where it was."""
    steps = list(range(number, number + 10 * NUM_POINTS, 10))
    curves = [
        {
            "name": f"metric {curve}",
            "validation": False,
            "steps": steps,
            "values": [
                math.exp(-step / 4000) + 0.1 * math.sin(step * (curve + 1)) for step in steps
            ],
        }
        for curve in range(NUM_CURVES)
    ]
    return {**training(), "curves": curves, "step": steps[-1]}


def main() -> list[measure.Row]:
    """Measure the processor time of the page's main thread."""
    with serve() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page(viewport={"width": 1200, "height": 4000})
        views = Views(tab, url)
        for number in range(NUM_TRAININGS):
            views.mount("training", state_at(0), key=f"training{number}")
        metrics = tab.context.new_cdp_session(tab)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        tab.evaluate(CHANGE, [state_at(number) for number in range(10)])
        percents = [busy_percent(tab, metrics) for _ in range(measure.REPEATS)]
        browser.close()
    what = f"{NUM_TRAININGS} trainings of {NUM_CURVES} curves x {NUM_POINTS:,} points at 2 Hz"
    taken = statistics.median(percents)
    return [measure.Row(f"browser's main thread, {what}", taken, "%", "< 10 %", "")]


def busy_percent(tab: Any, metrics: Any) -> float:
    """Return the share of some seconds in which the main thread worked."""
    begun = task_seconds(metrics)
    tab.wait_for_timeout(1000 * SECONDS)
    return 100 * (task_seconds(metrics) - begun) / SECONDS


def task_seconds(metrics: Any) -> float:
    """Return how long the main thread has worked so far."""
    found = metrics.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


if __name__ == "__main__":
    measure.emit(main())
