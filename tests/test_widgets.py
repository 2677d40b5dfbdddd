"""Widgets that live on engines, from the front end's side: a real kernel, real engines."""

import contextlib
import queue
import time
import uuid
from typing import Any

import pytest

from notebooks import Cell, Notebook

VIEW = "application/vnd.jupyter.widget-view+json"


class FrontEnd:
    """The widget models of a notebook, as a front end keeps them."""

    def __init__(self, nb: Notebook) -> None:
        self._nb = nb
        self.models: dict[str, dict[str, Any]] = {}
        self.texts: list[str] = []
        self.reloaded: dict[str, Any] = {}
        self.reloaded_buffers: list[Any] = []
        self.parents: dict[str, str] = {}

    def take(self, message: dict[str, Any]) -> None:
        content = message["content"]
        if content.get("data", {}).get("method") == "update_states":
            self.reloaded, self.reloaded_buffers = content["data"], message["buffers"]
        elif message["msg_type"] == "comm_open":
            self.models[content["comm_id"]] = dict(content["data"]["state"])
        elif message["msg_type"] == "comm_msg" and "state" in content["data"]:
            self.models.setdefault(content["comm_id"], {}).update(content["data"]["state"])
            self.parents[message["parent_header"]["msg_id"]] = content["comm_id"]
        elif "display" in message["msg_type"]:
            self.texts.append(content["data"]["text/plain"])

    def run(self, code: str) -> Cell:
        cell = self._nb.check(code)
        for message in cell.messages:
            self.take(message)
        return cell

    def send(self, model: str, data: dict[str, Any]) -> str:
        """Send what JavaScript sends; returns the message's id."""
        session = self._nb.client.session
        message = session.msg("comm_msg", {"comm_id": model, "data": data})
        self._nb.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def open_control(self) -> str:
        """Open the comm on which a page that is loaded asks for all states."""
        control = uuid.uuid4().hex
        content = {"comm_id": control, "target_name": "jupyter.widget.control", "data": {}}
        message = self._nb.client.session.msg("comm_open", content)
        message["metadata"] = {"version": "1.0.0"}
        self._nb.client.shell_channel.send(message)
        return control

    def press(self, model: str) -> None:
        self.send(model, {"method": "custom", "content": {"event": "click"}})

    def set(self, model: str, **state: Any) -> None:
        self.send(model, {"method": "update", "state": state, "buffer_paths": []})

    def wait_for(self, condition: Any, what: str, timeout: float = 60) -> None:
        """Take messages of any cell until a condition holds."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come; models: {self.models}, {self.texts}")
            with contextlib.suppress(queue.Empty):
                self.take(self._nb.client.get_iopub_msg(timeout=0.05))

    def find(self, kind: str, **state: Any) -> str:
        """The model of a class with some state."""
        (found,) = [
            model
            for model, has in self.models.items()
            if has.get("_model_name") == kind and state.items() <= has.items()
        ]
        return found


@pytest.fixture
def page(nb: Notebook) -> FrontEnd:
    front_end = FrontEnd(nb)
    front_end.run("import time")
    front_end.run("%%spmd\nimport ipywidgets as w\nfrom IPython.display import display")
    return front_end


def test_a_button_runs_its_callback_on_its_rank_and_the_change_comes_back(page: FrontEnd) -> None:
    cell = page.run(
        """%%spmd
button, label, presses = w.Button(description=f"rank {rank}"), w.Label("not yet"), []
def on_click(_):
    presses.append(rank)
    label.value = f"pressed on rank {rank}"
    print("heard", len(presses))
button.on_click(on_click)
display(w.HBox([button, label]))
"""
    )

    boxes = [data[VIEW]["model_id"] for data in cell.displays if VIEW in data]
    children = [page.models[box]["children"] for box in boxes]
    pairs = [tuple(child.removeprefix("IPY_MODEL_") for child in pair) for pair in children]
    button, label = next(p for p in pairs if page.models[p[0]]["description"] == "rank 1")
    other = next(p[1] for p in pairs if p[0] != button)
    page.press(button)
    page.wait_for(lambda: page.models[label]["value"] != "not yet", "the label's change")
    page.wait_for(lambda: "[1] heard 1" in page.texts, "what the callback prints")

    assert page.models[label]["value"] == "pressed on rank 1"
    assert page.models[other]["value"] == "not yet"
    assert "[1] [1]" in page.run("%%spmd\nprint(presses)").text


def test_a_sliders_value_is_there_in_the_next_cell(page: FrontEnd) -> None:
    page.run("%%spmd\nslider = w.IntSlider(value=3, description=f'rank {rank}')\nslider")

    page.set(page.find("IntSliderModel", description="rank 0"), value=42)

    assert page.run("%%spmd\nprint(slider.value)").text.split() == ["[0]", "42", "[1]", "3"]


def test_interact_shows_its_output_below_its_slider_and_nowhere_else(page: FrontEnd) -> None:
    cell = page.run(
        """%%spmd --ranks 1
def shown(x=2):
    print("square", x * x)
    return x + rank
w.interact(shown, x=(0, 10))
display("beside")
"""
    )
    slider, output = page.find("IntSliderModel"), page.find("OutputModel")
    assert "square" not in cell.text
    assert "beside" in cell.text
    page.wait_for(lambda: len(page.models[output]["outputs"]) == 2, "the first output")

    page.set(slider, value=5)

    def shown() -> list[str]:
        parts = page.models[output]["outputs"]
        return [part.get("text") or part["data"]["text/plain"] for part in parts]

    page.wait_for(lambda: shown() == ["square 25\n", "6"], "the new output")

    assert not any("square" in text for text in page.texts)


def test_an_output_widget_takes_lines_errors_and_bars_but_no_stop(page: FrontEnd) -> None:
    page.run(
        """%%spmd --ranks 0
out = w.Output()
with out:
    print("kept")
    out.clear_output()
    print("10%\\r20%\\r", end="")
    print("30%")
    1 / 0
print("goes on")
try:
    with out:
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print("stopped")
"""
    )

    output = page.find("OutputModel")
    page.wait_for(lambda: len(page.models[output]["outputs"]) == 2, "both outputs")
    text, error = page.models[output]["outputs"]
    assert text == {"output_type": "stream", "name": "stdout", "text": "30%\n"}
    assert (error["output_type"], error["ename"]) == ("error", "ZeroDivisionError")


def test_a_page_that_is_loaded_again_gets_the_states_while_the_engines_are_busy(
    page: FrontEnd,
) -> None:
    page.run("%%spmd --ranks 1\nbox = w.FloatText(1.5)\nimage = w.Image(value=b'pixels')")
    model, image = page.find("FloatTextModel"), page.find("ImageModel")
    page.run("%%spmd --ranks 1\nbox.value = 2.5")
    page.wait_for(lambda: page.models[model]["value"] == 2.5, "the new value")
    page.run("busy = mgpu.current_pool().submit_task(time.sleep, (60,), rank=1)")

    asked = page.send(model, {"method": "request_state"})
    page.wait_for(lambda: page.parents.get(asked) == model, "the answer to this very question")
    page.send(page.open_control(), {"method": "request_states"})
    page.wait_for(lambda: page.reloaded, "all states")
    page.run("busy.cancel()")

    again = page.reloaded["states"]
    assert again[model]["state"]["value"] == 2.5
    assert again[model]["model_name"] == "FloatTextModel"
    place = page.reloaded["buffer_paths"].index([image, "state", "value"])
    assert bytes(page.reloaded_buffers[place]) == b"pixels"


def test_a_widget_of_long_ago_still_answers(page: FrontEnd) -> None:
    page.run(
        "%%spmd --ranks 0\nold = w.IntText(1)\nold.observe(lambda c: print('changed'), 'value')"
    )
    model = page.find("IntTextModel")
    page.run("for _ in range(40): mgpu.spmd(int)")

    page.set(model, value=7)

    page.wait_for(lambda: page.models[model]["value"] == 7, "the echo")
    assert "7" in page.run("%%spmd --ranks 0\nprint(old.value)").text
