"""The browser side of the views, in a bare page: what they show, keep, send and say."""

import itertools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import view_states
from lab import running_browser
from view_page import CHROMIUM, VIEWS, Views, serve
from view_states import HOSTILE

from jupyter_mgpu.widgets.static import static_bundle

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
expect = playwright.expect

NAMES = list(view_states.ALL)
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
Open = Callable[..., Views]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve() as address:
        yield address


@pytest.fixture
def open_page(browser: Any, url: str) -> Iterator[Open]:
    """Open a bare page; at the end of the test its console must be free of errors."""
    opened: list[Views] = []

    def open_one(width: int = 1000, theme: str | None = None, *, clock: bool = False) -> Views:
        tab = browser.new_page(viewport={"width": width, "height": 900})
        if clock:
            tab.clock.install(time=START)
        views = Views(tab, url)
        if clock:
            tab.clock.pause_at(START + HOUR)  # from here on, time goes on only where a test says so
        if theme:
            views.use_theme(theme)
        opened.append(views)
        return views

    yield open_one
    for views in opened:
        views.tab.close()
    assert [views.errors for views in opened] == [[] for _ in opened]


@pytest.fixture
def views(open_page: Open) -> Views:
    return open_page()


def test_a_pool_shows_its_engines_with_device_proof_state_task_and_meters(views: Views) -> None:
    pool = views.mount("pool", view_states.pool(4))

    lane = pool.get_by_role("listitem").first
    for words in ("rank 0", "GPU 0 H200", "proven", "busy", "train resnet-18", "40.0 / 139.8 GiB"):
        expect(lane).to_contain_text(words)
    busy = pool.get_by_role("meter", name="GPU busy of rank 1")
    expect(busy).to_have_attribute("aria-valuenow", "0")
    expect(pool.get_by_role("meter", name="memory of rank 0")).to_have_attribute(
        "aria-valuetext", "40.0 of 139.8 gibibytes, the driver reserves 0.60"
    )
    expect(
        pool.get_by_role("img", name=re.compile("GPU busy of rank 2, last 2 minutes: now"))
    ).to_be_visible()
    expect(pool).to_contain_text("busy 4/4")
    expect(pool.get_by_role("group", name="Pool main")).to_be_visible()


def test_gpus_and_memory_of_other_hosts_stand_under_their_names(views: Views) -> None:
    here, there = view_states.gpu(0), view_states.gpu(0, label="GPU 0 on hostb", uuid="u on hostb")
    there |= {"state": "lost", "why": "No engine runs on hostb any more."}
    stale = {"name": "hostb", "state": "stale", "stale_s": 7.0, "trouble": "It is silent."}
    stale |= {"cpu": view_states.reading(41), "memory": view_states.memory(10.0, 64.0)}
    gpus = views.mount("gpus", view_states.gpus(gpus=[here, there], hosts=[stale]))

    expect(gpus.get_by_role("listitem")).to_have_count(2)
    expect(gpus).to_contain_text("This machine")
    expect(gpus).to_contain_text("stale 7 seconds: It is silent.")
    expect(gpus.get_by_role("meter", name="CPU busy of hostb")).to_have_attribute(
        "aria-valuenow", "41"
    )
    lane = gpus.locator(".mgpu-lane").filter(has_text="GPU 0 on hostb")
    lane.locator("summary").click()
    expect(lane).to_contain_text("No engine runs on hostb any more.")
    expect(lane).not_to_contain_text("dmesg")


def test_gpus_show_readings_and_users_and_one_opens_to_its_history_with_enter(
    views: Views,
) -> None:
    gpus = views.mount("gpus", view_states.gpus(4))
    lane = gpus.locator(".mgpu-lane").filter(has_text="GPU 1")
    for words in ("H200", "rank 1 of pool main", "91 %", "60.2 / 139.8 GiB", "70 °C", "631 / 700"):
        expect(lane).to_contain_text(words)
    expect(gpus.get_by_role("listitem").filter(has_text="GPU 2")).to_contain_text("nobody")
    expect(gpus).to_contain_text("does not say how much of the GPU was at work")

    lane.locator("summary").focus()
    views.tab.keyboard.press("Enter")

    expect(lane.get_by_text("memory in GiB, by minutes")).to_be_visible()
    expect(lane).to_contain_text("rank 1 of pool main (60.1 GiB)")
    expect(lane.get_by_role("img", name=re.compile("GPU busy in percent"))).to_be_visible()


def test_tasks_show_progress_metrics_errors_and_open_to_their_diary(views: Views) -> None:
    tasks = views.mount("tasks", view_states.tasks())

    running = tasks.get_by_role("listitem").first
    metrics = "loss 0.2143  epoch 31"
    for words in ("running", "train lr=0.1000", "12:04", "7:20 left", "62 %", metrics):
        expect(running).to_contain_text(words)
    progress = running.get_by_role("progressbar", name="Progress of train lr=0.1000")
    expect(progress).to_have_attribute("aria-valuenow", "62")
    expect(running.get_by_role("img", name=re.compile("loss of train.*first 2.5"))).to_be_visible()
    failed = tasks.get_by_role("listitem").filter(has_text="failed")
    expect(failed).to_contain_text("OutOfMemoryError: CUDA out of memory on rank 1 (GPU 3).")
    running.locator("summary").click()
    expect(running.get_by_role("region", name="Diary of train")).to_contain_text("epoch 31 of 50")


def test_a_training_shows_its_curves_and_facts_in_words_too(views: Views) -> None:
    training = views.mount("training", view_states.training())

    for term, value in {
        "Epoch": "5 / 8",
        "Left": "7:14",
        "Learning rate": "7.30e-4",
        "Best": "validation_loss 0.2561 at step 950",
        "Hardware": "4 x NVIDIA H200 (GPU 0 to 3), DDP over NCCL, bfloat16",
    }.items():
        fact = training.locator(".mgpu-fact").filter(has=views.tab.get_by_text(term, exact=True))
        expect(fact).to_contain_text(value)
    loss = training.get_by_role("img", name=re.compile(r"^loss: training from 2\.\d+ to 0\.\d+"))
    expect(loss).to_have_attribute("aria-label", re.compile("; validation from"))
    assert loss.locator(".mgpu-bands").get_attribute("d")
    assert loss.locator(".mgpu-line-faint").first.get_attribute("d")  # raw below smoothed
    assert loss.locator(".mgpu-validation .mgpu-line-dots").get_attribute("d")
    expect(training.get_by_role("figure")).to_have_count(2)  # validation joins its training curve


def test_rules_of_jupyterlab_for_lists_in_outputs_do_not_change_a_view(views: Views) -> None:
    alone = views.mount("training", view_states.training(), key="alone")
    views.tab.add_style_tag(
        content=""".jp-OutputArea-output dl, .jp-OutputArea-output dd { display: block; }
        .jp-OutputArea-output dt { font-weight: bold; float: left; width: 20%; }
        .jp-OutputArea-output dd { float: left; width: 80%; }"""
    )
    there = views.mount("training", view_states.training(), key="there")
    there.evaluate("node => node.classList.add('jp-OutputArea-output')")

    assert there.bounding_box()["height"] == alone.bounding_box()["height"]


def test_a_training_that_knows_little_shows_no_empty_facts(views: Views) -> None:
    unknown = dict.fromkeys(("epoch", "epochs", "steps", "eta_s", "rate", "samples_per_s"))
    training = views.mount("training", view_states.training(best=None, **unknown))

    terms = training.get_by_role("term").all_text_contents()
    assert terms == ["Step", "Elapsed", "Began", "Hardware"]
    expect(training.locator(".mgpu-fact").first).to_contain_text("1\u2009000")
    expect(training.get_by_role("progressbar")).to_have_count(0)


def test_compared_trainings_are_named_at_their_ends_and_the_best_is_marked(views: Views) -> None:
    compare = views.mount("compare", view_states.compare(3))

    expect(compare.locator(".mgpu-end")).to_have_text(["lr=0.3", "lr=0.15", "lr=0.075"])
    expect(compare.get_by_role("listitem").last).to_contain_text("best so far")
    expect(compare.get_by_text("best so far").locator("visible=true")).to_have_count(1)

    compare.get_by_role("checkbox", name="lr=0.15").uncheck()
    compare.get_by_label("Metric").select_option("accuracy")

    expect(compare.locator(".mgpu-end")).to_have_text(["lr=0.3", "lr=0.075"])
    expect(compare.get_by_role("img")).to_have_attribute("aria-label", re.compile("^accuracy"))


def test_values_stand_under_the_pointer_and_follow_arrow_keys(views: Views) -> None:
    training = views.mount("training", view_states.training(101))  # 51 is in the middle
    chart = training.get_by_role("figure").first
    cursor = chart.get_by_role("slider")

    cursor.hover()
    expect(chart).to_contain_text("step 51")
    cursor.focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        views.tab.keyboard.press(key)

    expect(chart).to_contain_text("step 3")
    expect(cursor).to_have_attribute("aria-valuetext", re.compile(r"^step 3, training \d\.\d+"))


@pytest.mark.parametrize("value", [0.001, -0.00123, 12345.6, -7.0])
def test_the_numbers_at_an_axis_differ_and_are_not_cut_off(views: Views, value: float) -> None:
    state = view_states.training(40)
    state["curves"] = [state["curves"][0] | {"values": [value] * 40}]
    chart = views.mount("training", state).get_by_role("figure")
    ticks = chart.locator(".mgpu-tick-y")
    expect(ticks.first).to_be_visible()

    texts = ticks.all_text_contents()
    lefts = [ticks.nth(number).bounding_box()["x"] for number in range(len(texts))]

    assert len(set(texts)) == len(texts)
    assert min(lefts) >= chart.locator("svg").first.bounding_box()["x"]


def test_a_log_axis_has_decades_and_tells_what_it_cannot_show(views: Views) -> None:
    state = view_states.training(40)
    values = [10.0 ** (2 - n / 10) for n in range(40)]
    state["curves"] = [state["curves"][0] | {"values": [*values[:-2], 0.0, None]}]
    training = views.mount("training", state)
    chart = training.get_by_role("figure")
    expect(chart).to_contain_text("1 value is not a finite number.")

    training.get_by_role("button", name="Log axis").click()

    expect(training.get_by_role("button", name="Log axis")).to_have_attribute(
        "aria-pressed", "true"
    )
    ticks = chart.locator(".mgpu-tick-y").all_text_contents()
    assert {"100", "10", "1", "0.1"} <= set(ticks)
    expect(chart).to_contain_text("has no place on the log axis")


@pytest.mark.parametrize("name", NAMES)
def test_an_update_keeps_every_node_and_moves_none_without_need(name: str, views: Views) -> None:
    state = view_states.ALL[name]()
    place = views.mount(name, state)
    for lane in place.locator("summary").all():
        lane.click()
    views.change(name, state)
    views.tab.evaluate(
        """el => {
            window.moves = 0;
            new MutationObserver((found) => { window.moves += found.length; })
                .observe(el, { childList: true, subtree: true });
        }""",
        place.element_handle(),
    )

    later = view_states.ALL[name]()
    later["at"] += 1
    for row in [*later.get("engines", []), *later.get("gpus", [])]:
        row["utilization"] = view_states.reading(33)
        row["utilization_history"] = view_states.series(7)
    for row in later.get("tasks", []):
        row["diary"] += "another line\n"
    views.change(name, later)

    assert views.tab.evaluate("window.moves") == 0


def test_the_focus_an_open_lane_and_a_question_stay_over_updates(views: Views) -> None:
    pool = views.mount("pool", view_states.pool(4))
    lane = pool.get_by_role("listitem").nth(1)
    lane.locator("summary").click()
    lane.get_by_role("button", name="Restart…").click()
    expect(lane.get_by_role("button", name="Keep")).to_be_focused()

    views.change("pool", view_states.pool(4, queued=99))

    expect(pool).to_contain_text("99 queued")
    expect(lane.get_by_role("button", name="Keep")).to_be_focused()
    expect(lane.get_by_text("process 41001")).to_be_visible()


def test_the_focus_stays_on_a_task_that_moves_down_the_list(views: Views) -> None:
    tasks = views.mount("tasks", view_states.tasks(["running", "running", "queued"]))
    first = tasks.get_by_role("listitem").first.locator("summary")
    first.click()

    state = view_states.tasks(["finished", "running", "running"])
    state["tasks"] = [*state["tasks"][1:], state["tasks"][0]]
    views.change("tasks", state)

    last = tasks.get_by_role("listitem").last
    expect(last).to_contain_text("finished")
    expect(last.locator("summary")).to_be_focused()
    expect(last.get_by_role("region")).to_be_visible()


def test_the_focus_goes_to_the_list_when_its_task_is_no_longer_listed(views: Views) -> None:
    tasks = views.mount("tasks", view_states.tasks(["running", "finished"]))
    tasks.locator("summary").last.focus()

    views.change("tasks", view_states.tasks(["running"]))

    expect(tasks.get_by_role("list")).to_be_focused()


def test_a_selection_in_a_growing_diary_stays(views: Views) -> None:
    lines = "".join(f"step {number}: the loss is falling slowly\n" for number in range(40))
    state = view_states.tasks(["running"])
    state["tasks"][0]["diary"] = lines
    tasks = views.mount("tasks", state)
    tasks.locator("summary").click()
    expect(tasks.get_by_role("region")).to_contain_text("step 39")
    views.tab.evaluate(
        """() => {
            const text = document.querySelector(".mgpu-diary").firstChild;
            const at = text.data.indexOf("step 30");
            getSelection().setBaseAndExtent(text, at, text, at + 7);
        }"""
    )

    state["tasks"][0]["diary"] = lines[lines.index("step 9:") :] + "step 40: and lower still\n"
    views.change("tasks", state)

    expect(tasks.get_by_role("region")).to_contain_text("lower still")
    expect(tasks.get_by_role("region")).not_to_contain_text("step 8:")
    assert views.tab.evaluate("getSelection().toString()") == "step 30"


def test_numbers_keep_their_place_whatever_they_are(views: Views) -> None:
    state = view_states.pool(2)
    pool = views.mount("pool", state)
    boxes = [bar.bounding_box() for bar in pool.get_by_role("meter").all()]

    for engine in state["engines"]:
        engine["utilization"] = view_states.reading(100)
        engine["memory"] = view_states.memory(139.7, 139.8, 0.6)
    views.change("pool", state)
    assert [bar.bounding_box() for bar in pool.get_by_role("meter").all()] == boxes

    for engine in state["engines"]:
        engine["utilization"] = view_states.reading(None, "the driver does not answer")
        engine["memory"] = view_states.memory(0, 139.8)
    views.change("pool", state)
    assert [bar.bounding_box() for bar in pool.get_by_role("meter").all()] == boxes


def test_stopping_a_pool_asks_first_says_what_is_lost_and_no_is_the_default(views: Views) -> None:
    pool = views.mount("pool", view_states.pool(4))
    stop = pool.get_by_role("button", name="Stop…")

    stop.click()
    question = pool.get_by_role("group", name=re.compile("^Stop pool main"))
    expect(question).to_contain_text("3 tasks are running and end. Its 4 engines end; variables")
    views.tab.keyboard.press("Enter")  # the focus is on Keep
    expect(stop).to_be_focused()
    stop.click()
    views.tab.keyboard.press("Escape")
    expect(question).to_have_count(0)
    assert views.sent("pool") == []

    stop.click()
    pool.get_by_role("button", name="Stop the pool").click()

    assert views.sent("pool") == [{"action": "stop", "pool": "main", "rank": None}]


def test_buttons_send_their_actions(views: Views) -> None:
    pool = views.mount("pool", view_states.pool(2))
    pool.get_by_role("button", name="Interrupt").first.click()
    pool.locator("summary").last.click()
    lane = pool.get_by_role("listitem").last
    lane.get_by_role("button", name="Interrupt").click()
    lane.get_by_role("button", name="Restart…").click()
    lane.get_by_role("button", name="Restart", exact=True).click()
    assert [(one["action"], one["rank"]) for one in views.sent("pool")] == [
        ("interrupt", None),
        ("interrupt", 1),
        ("restart", 1),
    ]

    training = views.mount("training", view_states.training())
    training.get_by_role("button", name="Stop after epoch").click()
    training.get_by_role("button", name="Stop now").click()
    assert views.sent("training") == [
        {"action": "stop_after_epoch", "task": "task-7"},
        {"action": "request_stop", "task": "task-7"},
    ]

    tasks = views.mount("tasks", view_states.tasks())
    tasks.get_by_role("button", name="Stop", exact=True).first.click()
    tasks.get_by_role("button", name="Cancel…").nth(1).click()
    expect(tasks).to_contain_text("Cancel train lr=0.0500? What it has done so far is lost.")
    assert views.sent("tasks") == [{"action": "request_stop", "task": "task-0"}]
    tasks.get_by_role("button", name="Cancel the task").click()
    assert views.sent("tasks")[1:] == [{"action": "cancel", "task": "task-1"}]


def test_only_what_the_kernel_offers_has_a_button(views: Views) -> None:
    queued = view_states.training(state="queued", controls=["cancel"], curves=[])
    training = views.mount("training", queued)
    expect(training.get_by_role("button")).to_have_text(["Cancel…"])
    training.get_by_role("button", name="Cancel…").click()
    expect(training).to_contain_text("Cancel resnet-50? It has not begun.")
    training.get_by_role("button", name="Cancel the training").click()
    assert views.sent("training") == [{"action": "cancel", "task": "task-7"}]

    state = view_states.tasks(["running", "running"])
    state["tasks"][0]["controls"] = ["request_stop"]
    state["tasks"][1]["controls"] = []
    tasks = views.mount("tasks", state)
    expect(tasks.get_by_role("button")).to_have_text(["Stop"])


def test_a_training_opens_to_what_it_printed(views: Views) -> None:
    training = views.mount("training", view_states.training())

    training.get_by_text("What it printed").click()

    expect(training.get_by_role("region", name="Diary of resnet-50")).to_contain_text("epoch 5")


def test_an_answer_is_shown_and_a_missing_one_too(open_page: Open) -> None:
    views = open_page(clock=True)
    pool = views.mount("pool", view_states.pool(2))
    pool.get_by_role("button", name="Interrupt").first.click()
    views.answer("pool", action="interrupt", ok=False, words="Rank 1 did not stop within 5 s.")
    expect(pool.get_by_text("Rank 1 did not stop within 5 s.").first).to_be_visible()

    pool.get_by_role("button", name="Interrupt").first.click()
    expect(pool.locator(".mgpu-answer")).to_be_hidden()
    views.tab.clock.run_for(11_000)

    expect(pool).to_contain_text("No answer from the kernel yet.")


@pytest.mark.parametrize(
    ("button", "confirm", "typed"),
    [("Restart…", "Restart", "%parpool restart"), ("Stop…", "Stop the pool", "%parpool stop")],
)
def test_a_missing_answer_says_what_to_type_instead(
    button: str, confirm: str, typed: str, open_page: Open
) -> None:
    views = open_page(clock=True)
    pool = views.mount("pool", view_states.pool(2))
    pool.get_by_role("button", name=button).first.click()
    pool.get_by_role("button", name=confirm, exact=True).click()

    views.tab.clock.run_for(11_000)

    expect(pool.locator(".mgpu-answer")).to_contain_text(typed)


def test_a_page_of_a_server_without_a_part_of_ours_asks_the_kernel(open_page: Open) -> None:
    views = open_page()
    views.tab.evaluate(
        """() => {
            const config = document.createElement("script");
            config.id = "jupyter-config-data";
            config.type = "application/json";
            config.textContent = '{"baseUrl": "/elsewhere/"}';
            document.head.append(config);
        }"""
    )
    pool = views.mount("pool", {**view_states.pool(2), "place": {"pool": "abc"}})

    with views.tab.expect_console_message(lambda line: line.type == "error"):
        pool.get_by_role("button", name="Interrupt").first.click()

    views.tab.wait_for_function("models.pool.sent.length")
    assert views.sent("pool") == [{"action": "interrupt", "pool": "main", "rank": None}]
    assert all("404" in error or "501" in error for error in views.errors)
    views.errors.clear()  # the browser tells of the answer that there is no such page


def test_only_ends_failures_and_losses_are_announced_and_one_per_ten_seconds(
    open_page: Open,
) -> None:
    views = open_page(clock=True)
    tasks = views.mount("tasks", view_states.tasks(["running"] * 40))
    region = tasks.get_by_role("status")
    views.tab.evaluate(
        """() => {
            window.said = [];
            const region = document.querySelector("[role=status]");
            new MutationObserver(() => window.said.push([performance.now(), region.textContent]))
                .observe(region, { childList: true, characterData: true, subtree: true });
        }"""
    )
    expect(region).to_have_text("")  # nothing is news when a page opens

    for ended in range(1, 21):  # one ends each second
        views.tab.evaluate(
            "([name, state]) => models[name].set(state)",
            ["tasks", view_states.tasks(["finished"] * ended + ["running"] * (40 - ended))],
        )
        views.tab.clock.run_for(1000)
    views.tab.clock.run_for(20_000)

    times, texts = zip(*views.tab.evaluate("window.said"), strict=True)
    assert texts[0] == "train lr=0.1000 is finished"
    assert texts[1].startswith("train lr=0.0500 is finished. train lr=0.0333 is finished. ")
    assert re.search(r"\. and \d more$", texts[1])
    assert len(texts) == 3  # in 40 s, of 20 tasks
    assert all(b - a >= 10_000 for a, b in itertools.pairwise(times))


def test_a_lost_gpu_and_a_dead_engine_are_announced(open_page: Open) -> None:
    views = open_page(clock=True)
    gpus = views.mount("gpus", view_states.gpus(2))
    pool = views.mount("pool", view_states.pool(2))

    state = view_states.gpus(2)
    state["gpus"][1] |= {"state": "lost", "utilization": view_states.reading(None, "GPU is lost")}
    dead = view_states.pool(2, state="degraded")
    dead["engines"][1]["state"] = "dead"
    for name, now in (("gpus", state), ("pool", dead)):
        views.tab.evaluate("([name, state]) => models[name].set(state)", [name, now])
    views.tab.clock.run_for(1000)

    expect(gpus.get_by_role("status")).to_have_text("GPU 1 is lost")
    expect(pool.get_by_role("status")).to_contain_text("rank 1 on GPU 1 H200 is dead")
    expect(gpus.get_by_role("listitem").last).to_contain_text("lost")
    expect(gpus.get_by_role("meter", name="GPU busy of GPU 1")).to_have_attribute(
        "aria-valuetext", "not available: GPU is lost"
    )
    expect(pool).to_contain_text("1 of 2 engines")


def test_broken_and_empty_states_say_what_to_do_next(views: Views) -> None:
    trouble = "Driver 580.95 and library 575.57 differ."
    broken = views.mount("gpus", view_states.gpus(0, trouble=trouble), key="broken")
    expect(broken).to_contain_text(trouble)
    expect(broken).to_contain_text("Pools still work on CPU engines: %parpool 2")
    none = views.mount("gpus", view_states.gpus(0), key="none")
    expect(none).to_contain_text("No GPU is here.")
    expect(none.get_by_role("meter", name="host memory")).to_be_visible()
    stale = views.mount(
        "gpus",
        view_states.gpus(0, gpus=[view_states.gpu(0, state="stale", stale_s=12.0)]),
        key="stale",
    )
    expect(stale).to_contain_text("stale 12 seconds")
    expect(views.mount("tasks", view_states.tasks([], tasks=[]))).to_contain_text("%%parfeval")
    expect(views.mount("compare", view_states.compare(0))).to_contain_text("No training")
    expect(views.mount("training", view_states.training(curves=[]))).to_contain_text("Nothing is")
    expect(views.mount("pool", None)).to_contain_text("Waiting for the first news")


READINGS = ["utilization", "memory", "power", "power_limit", "temperature"]


@pytest.mark.parametrize("missing", READINGS)
def test_one_number_that_is_missing_takes_no_other_with_it(missing: str, views: Views) -> None:
    reading = {"value": None, "used": None, "total": None, "reason": "the driver does not say"}
    gpu = {**view_states.gpu(0), missing: reading}
    texts = {
        "utilization": "92 %",
        "memory": "61.2 / 139.8 GiB",
        "power": "640",
        "power_limit": "/ 700 W",
        "temperature": "71 °C",
    }

    place = views.mount("gpus", view_states.gpus(1, gpus=[gpu]))

    lane = place.get_by_role("listitem")
    if missing != "power_limit":
        expect(lane).to_contain_text("n/a")
    gone = [missing, "power_limit"] if missing == "power" else [missing]
    for name in READINGS:
        shown = expect(lane)
        (shown.not_to_contain_text if name in gone else shown.to_contain_text)(texts[name])
    expect(place).not_to_contain_text("undefined")


def test_a_long_name_is_cut_and_there_to_be_read_in_full(views: Views) -> None:
    name = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition with a long name"
    gpus = views.mount("gpus", view_states.gpus(1, gpus=[view_states.gpu(3, name=name)]))

    expect(gpus.get_by_role("listitem")).to_contain_text("GPU 3")
    expect(gpus.get_by_title(name)).to_have_count(1)


@pytest.mark.parametrize("name", NAMES)
def test_a_view_reads_what_a_file_holds(name: str, views: Views) -> None:
    state = view_states.ALL[name]()
    live = views.mount(name, state, key="live")
    held = static_bundle({**state, "id": "held"})["application/vnd.jupyter-mgpu.view.v1+json"]

    read = views.mount(name, held, key="held")

    assert read.inner_text() == live.inner_text()
    paths = "places => places.map(place => place.getAttribute('d'))"
    assert read.locator("path").evaluate_all(paths) == live.locator("path").evaluate_all(paths)


def test_cpu_engines_show_cpu_and_the_memory_of_their_process(views: Views) -> None:
    engines = [view_states.cpu_engine(rank) for rank in range(2)]
    pool = views.mount("pool", view_states.pool(0, engines=engines))

    lane = pool.get_by_role("listitem").first
    expect(lane).to_contain_text("CPU 0")
    expect(lane.get_by_role("meter", name="CPU busy of rank 0")).to_be_visible()
    expect(lane.get_by_role("meter", name="memory of the process of rank 0")).to_have_attribute(
        "aria-valuetext", "0.40 of 31.2 gibibytes"
    )
    expect(lane.get_by_text("proven", exact=True)).to_be_hidden()


@pytest.mark.parametrize("name", NAMES)
def test_a_final_state_says_since_when_and_has_no_buttons_that_act(name: str, views: Views) -> None:
    notice = "Not live since 12:04: the kernel is gone."
    place = views.mount(name, view_states.ALL[name](final=True, notice=notice))

    expect(place.get_by_text(notice)).to_be_visible()
    for words in ("Interrupt", "Restart…", "Stop…", "Stop", "Cancel…", "Stop now"):
        expect(place.get_by_role("button", name=words, exact=True)).to_have_count(0)


def test_silence_is_noticed_by_the_clock_but_not_of_an_ended_training(open_page: Open) -> None:
    views = open_page(clock=True)
    live = views.mount("training", view_states.training(), key="live")
    ended = views.mount("training", view_states.training(state="finished"), key="ended")

    views.tab.clock.run_for(80_000)

    expect(live).to_contain_text("No news for 1 minute: the kernel is busy, or gone.")
    expect(ended).not_to_contain_text("No news")
    views.tab.evaluate("state => models.live.set(state)", view_states.training())
    views.tab.clock.run_for(100)
    expect(live).not_to_contain_text("No news")


@pytest.mark.parametrize("name", NAMES)
def test_what_users_write_is_text(name: str, views: Views) -> None:
    state = _with_text(view_states.ALL[name](), HOSTILE)
    place = views.mount(name, state)
    for lane in place.locator("summary").all():
        lane.click()

    assert views.tab.evaluate("window.hacked") is None
    expect(place.locator("b, main img")).to_have_count(0)
    shown = place.text_content().replace("…", "")
    assert "<img src=x" in shown


def _with_text(value: Any, text: str, key: str = "") -> Any:
    """The state, with a text for each name, diary, error and other words of users."""
    if isinstance(value, dict):
        return {name: _with_text(one, text, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_text(one, text, key) for one in value]
    words = ("name", "diary", "error", "task", "device", "words", "environment", "notes")
    words += ("notebook", "trouble", "notice", "reason", "pool", "outcome", "metrics")
    return text if key in words and (isinstance(value, str) or key == "error") else value


@pytest.mark.parametrize("width", [280, 600, 1100, 1600])
@pytest.mark.parametrize("count", [1, 16])
def test_nothing_is_wider_than_its_place(width: int, count: int, open_page: Open) -> None:
    views = open_page(width, "light")
    states = {
        "pool": view_states.pool(count),
        "gpus": view_states.gpus(count),
        "tasks": view_states.tasks(["running"] * 8 + ["failed"] * 8),
        "training": view_states.training(),
        "compare": view_states.compare(8),
    }
    for name, state in states.items():
        place = views.mount(name, state)
        place.locator("summary").first.click() if place.locator("summary").count() else None
        place.get_by_role("button", name="…").first.click() if name in ("pool", "tasks") else None
        views.change(name, state)
    for name, state in states.items():
        views.mount(name, _with_text(state, "a" * 300), key=f"long {name}".replace(" ", "-"))

    wide = views.tab.evaluate(
        """() => [...document.querySelectorAll(".mgpu, .mgpu *")]
            .filter((node) => !node.closest("svg"))
            .filter((node) => {
                const own = node.getBoundingClientRect();
                const root = node.closest(".mgpu").getBoundingClientRect();
                return own.width > 2 && own.right > root.right + 0.5;
            }).map((node) => `${node.className} ${node.textContent.slice(0, 40)}`)"""
    )
    assert wide == [], "\n".join(wide)
    assert views.tab.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("theme", ["light", "dark", "dark-high-contrast"])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_serious(name: str, theme: str, open_page: Open) -> None:
    views = open_page(900, theme)
    place = views.mount(name, view_states.ALL[name]())
    if place.locator("summary").count():
        place.locator("summary").first.click()
        place.locator("summary").last.click()
    if name in ("pool", "tasks"):
        place.get_by_role("button", name="…").first.click()

    found = axe.Axe().run(views.tab, context=f"#{name}").response["violations"]

    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert [
        (one["id"], [(node["html"][:90], node["failureSummary"]) for node in one["nodes"]])
        for one in serious
    ] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_without_a_theme_follows_the_system(scheme: str, open_page: Open) -> None:
    views = open_page()
    views.tab.emulate_media(color_scheme=scheme)
    place = views.mount("training", view_states.training())

    back = place.locator(".mgpu").evaluate("node => getComputedStyle(node).backgroundColor")
    assert back == ("rgb(33, 33, 33)" if scheme == "dark" else "rgb(255, 255, 255)")
    found = axe.Axe().run(views.tab, context="#training").response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []


def test_forced_colors_keep_bars_and_lines_visible(open_page: Open) -> None:
    views = open_page(900)
    views.tab.emulate_media(forced_colors="active")
    pool = views.mount("pool", view_states.pool(2))
    compare = views.mount("compare", view_states.compare(9))

    colour = "node => getComputedStyle(node).backgroundColor"
    bar = pool.get_by_role("meter").first
    assert bar.locator(".mgpu-bar-used").evaluate(colour) != bar.evaluate(colour)
    lines = compare.locator(".mgpu-line-main")
    stroke = "node => getComputedStyle(node).stroke"
    text = pool.locator(".mgpu").evaluate("node => getComputedStyle(node).color")
    assert lines.first.evaluate(stroke) == text
    # The ninth has the colour of the first; its dashes tell it apart.
    dash = "node => getComputedStyle(node).strokeDasharray"
    plain = compare.locator(".mgpu-run .mgpu-line-main")
    assert plain.nth(0).evaluate(dash) != plain.nth(8).evaluate(dash)


def test_nothing_moves_by_itself_where_less_motion_is_asked_for(open_page: Open) -> None:
    views = open_page()
    views.tab.emulate_media(reduced_motion="reduce")
    for name in NAMES:
        views.mount(name, view_states.ALL[name]())

    assert views.tab.evaluate("document.getAnimations().length") == 0


def test_sixteen_gpus_have_sixteen_lanes_of_at_most_two_lines(open_page: Open) -> None:
    views = open_page(700)
    gpus = views.mount("gpus", view_states.gpus(16))

    expect(gpus.get_by_role("listitem")).to_have_count(16)
    heights = [lane.bounding_box()["height"] for lane in gpus.get_by_role("listitem").all()]
    assert max(heights) < 66
    looks = gpus.locator(".mgpu-spark").evaluate_all(
        "nodes => nodes.map((node) => node.getAttribute('class'))"
    )
    assert len(set(looks)) == 16


def test_two_hundred_tasks_stay_in_a_box_that_scrolls(views: Views) -> None:
    states = ["running"] * 4 + ["queued"] * 40 + ["finished"] * 156
    tasks = views.mount("tasks", view_states.tasks(states, hidden=1200))

    expect(tasks.get_by_role("listitem")).to_have_count(200)
    expect(tasks).to_contain_text("4 running · 40 queued · 156 finished")
    expect(tasks).to_contain_text("1200 older tasks are not shown.")
    assert tasks.bounding_box()["height"] < 700


def test_long_curves_are_drawn_with_no_more_points_than_pixels_show(views: Views) -> None:
    state = view_states.training(10_000)
    values = state["curves"][0]["values"]
    values[5000] = 9.5
    training = views.mount("training", state)
    chart = training.get_by_role("figure").first

    raw = chart.locator(".mgpu-line-faint").first.get_attribute("d")
    width = chart.bounding_box()["width"]
    assert raw.count("L") < 4 * width
    highest = min(float(point.split(" ")[1]) for point in re.findall(r"[\d.]+ [\d.]+", raw))
    tallest = chart.locator(".mgpu-tick-y").last.get_attribute("y")
    assert highest < float(tallest) + 20  # the one high value is kept


def test_smoothing_keeps_a_constant_and_gaps_and_lies_between_the_values(views: Views) -> None:
    smoothed = views.tab.evaluate(
        """async () => {
            const { smooth } = await import("./curves.js");
            return [smooth([3, 3, null, 3], 0.9), smooth([0, 10, 0, 10], 0.5)];
        }"""
    )

    assert smoothed[0] == pytest.approx([3, 3, None, 3])
    assert smoothed[1] == pytest.approx([0, 20 / 3, 20 / 7, 20 / 3])


def test_a_thinned_curve_has_its_gaps_and_the_extremes_of_each_column(views: Views) -> None:
    paths = views.tab.evaluate(
        """async () => {
            const { thinPath } = await import("./curves.js");
            return [
                thinPath([0, 0.2, 0.4, 0.6, 0.8], [5, 9, 1, 4, 5]),
                thinPath([0, 1, 2, 3], [1, null, 3, 4]),
            ];
        }"""
    )

    assert paths == ["M0.2 9L0.4 1", "M0 1M2 3L3 4"]


def test_labels_at_the_ends_of_lines_never_cover_one_another(views: Views) -> None:
    placed = views.tab.evaluate(
        """async () => (await import("./curves.js")).spread([50, 50, 51, 99, 100, 100], 13, 100)"""
    )

    assert sorted(placed) == placed  # in the order of the lines
    assert placed[-1] == 100
    assert all(b - a >= 13 for a, b in itertools.pairwise(placed))


def test_a_host_may_give_other_words(views: Views) -> None:
    strings = {"interrupt": "Unterbrechen", "queued": "{n} warten"}
    pool = views.mount("pool", view_states.pool(2), strings=strings)

    expect(pool.get_by_role("button", name="Unterbrechen").first).to_be_visible()
    expect(pool).to_contain_text("3 warten")


@pytest.mark.parametrize("name", NAMES)
def test_a_view_that_is_taken_away_leaves_nothing(name: str, open_page: Open) -> None:
    views = open_page(clock=True)
    place = views.mount(name, view_states.ALL[name]())

    views.tab.evaluate("name => cleanups[name]()", name)

    assert views.tab.evaluate("name => models[name].heard", name) == []
    assert place.inner_html() == ""
    views.tab.clock.run_for(60_000)  # no timer of it fails


@pytest.mark.parametrize("name", NAMES)
def test_a_view_and_what_it_imports_work_as_one_string(name: str, views: Views) -> None:
    source = _bundle(f"{name}.js", set())
    address = views.tab.evaluate(
        "text => URL.createObjectURL(new Blob([text], { type: 'text/javascript' }))", source
    )
    assert "import {" not in source

    place = views.mount(name, view_states.ALL[name](), **{"from": address})

    expect(place.locator(".mgpu-head")).to_be_visible()


def _bundle(name: str, done: set[str]) -> str:
    """A module after those that it imports, as a host without a bundler joins them."""
    done.add(name)
    parts, own = [], []
    for line in (VIEWS / name).read_text(encoding="utf-8").splitlines():
        found = re.match(r'import .* from "\./(\w+\.js)";$', line)
        if found is None:
            own.append(re.sub(r"^export (?!default)", "", line))
        elif found[1] not in done:
            parts.append(_bundle(found[1], done))
    return "\n".join([*parts, *own])


def test_no_view_gives_a_shared_word_another_meaning() -> None:
    def keys(name: str, table: str) -> set[str]:
        text = (VIEWS / name).read_text(encoding="utf-8")
        body = text[text.index(f"const {table}_WORDS = {{") :]
        return set(re.findall(r"(?:^|[ {])(\w+): [\"\[]", body[: body.index("\n};")], re.MULTILINE))

    shared = keys("parts.js", "PARTS") | keys("chart.js", "CHART")
    assert len(shared) > 25
    for name in NAMES:
        assert keys(f"{name}.js", name.upper()) & shared == set()
