"""Each internal of ipykernel, IPython and ipyparallel that is overridden, with what breaks else.

One test each, named after it: a new version that changes one of them fails here by name.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from jupyter_mgpu import parpool
from jupyter_mgpu.pool import Pool
from notebooks import Notebook, wait_until

pytestmark = pytest.mark.oldest

DISPLAYED = """%%spmd --ranks 1
from IPython.display import clear_output, display
"""


@pytest.fixture
def client(pool: Pool) -> Any:
    """The client of ipyparallel; registration needs the controller's heart beats."""
    wait_until(lambda: pool.client.ids == [0, 1], 60, "both engines at ipyparallel's hub")
    return pool.client


@pytest.fixture
def ask(pool: Pool) -> Callable[[str], Any]:
    """Evaluates an expression on rank 0, where `kernel` is its kernel."""

    def evaluate(expression: str) -> Any:
        from IPython.core.getipython import get_ipython

        return eval(expression, {"kernel": get_ipython().kernel})

    return lambda expression: pool.submit_task(evaluate, (expression,), rank=0).result(60)


# --- ipyparallel's engine and kernel ----------------------------------------------------------


def test_override_of_kernel_shell_channel_thread_lets_cells_with_await_reply(client: Any) -> None:
    code = "import asyncio\nawait asyncio.sleep(0)\nslept = 1"

    replies = client[:].execute(code, block=False).get(timeout=60)

    assert [reply.status for reply in replies] == ["ok", "ok"]


def test_override_of_kernel_supports_kernel_subshells_promises_none(ask: Callable) -> None:
    assert ask("kernel._supports_kernel_subshells") is False
    assert not ask("kernel.kernel_info.get('supported_features', [])")


def test_override_of_engine_kernel_class_runs_ours(ask: Callable) -> None:
    assert ask("[c.__name__ for c in type(kernel).__mro__[:2]]") == [
        "EngineKernel",
        "IPythonParallelKernel",
    ]


def test_override_of_engine_register_and_start_heartbeat_wait_for_a_client() -> None:
    with parpool(1, name="late") as late:
        assert late.submit(pow, 2, 3).result(60) == 8
        assert late.owner.cluster.controller_pid is None

        wait_until(lambda: late.client.ids == [0], 60, "the engine at ipyparallel's hub")


def test_override_of_engine_init_engine_keeps_the_kernels_path(ask: Callable) -> None:
    import sys

    assert ask("__import__('sys').path") == sys.path


def test_override_of_engine_complete_registration_starts_ours(ask: Callable) -> None:
    assert "on_sigint" in ask("repr(__import__('signal').getsignal(2))")


# --- ipyparallel's controller and launchers ---------------------------------------------------


def test_override_of_controller_process_beats_in_a_thread(pool: Pool, client: Any) -> None:
    controller = psutil.Process(pool.owner.cluster.controller_pid)

    assert client.ids == [0, 1]
    assert controller.children(recursive=True) == []


def test_override_of_launcher_start_waiting_leaves_the_exit_code_to_the_owner(
    pool: Pool, client: Any
) -> None:
    assert client.ids == [0, 1]
    names = [thread.name for thread in threading.enumerate()]
    assert f"wait(pid={pool.owner.cluster.controller_pid})" in names  # as ipyparallel does
    assert [e.pid for e in pool.engines if f"wait(pid={e.pid})" in names] == []

    lost = pool.submit_task(os._exit, (7,), rank=1)

    assert "code 7" in str(lost.exception(60))


def test_an_unregistration_frees_the_rank_at_ipyparallels_hub(pool: Pool, client: Any) -> None:
    old = pool.engines[1].pid
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: pool.engines[1].pid != old and pool.engines[1].state == "idle", 60)

    def answers() -> bool:
        return client.ids == [0, 1] and client[1].apply_async(os.getpid).get(timeout=5) != old

    wait_until(answers, 9, "the new engine, before missed heart beats tell of the old one")


# --- the shell and the streams of an engine's kernel ------------------------------------------


def test_override_of_stream_write_gives_lines_to_the_cell(nb: Notebook) -> None:
    cell = nb.check("%%spmd --ranks 1\nprint('a line')")

    assert cell.stdout == "a line\n"


def test_override_of_stream_echo_and_fileno_shows_descriptors_once(nb: Notebook) -> None:
    code = "import os, sys\nos.write(sys.stdout.fileno(), b'once\\n')\nsys.stdout.fileno()"

    cell = nb.check(f"%%spmd --ranks 1\n{code}")

    assert (cell.stdout.count("once"), cell.result.strip() or cell.text.split()[-1]) == (1, "1")


def test_override_of_display_pub_publish_shows_displays_in_the_cell(nb: Notebook) -> None:
    cell = nb.check(DISPLAYED + "display('shown', display_id='here')")

    assert "'shown'" in cell.text


def test_override_of_display_pub_clear_output_clears_the_rank(nb: Notebook) -> None:
    cell = nb.check(DISPLAYED + "print('gone')\nclear_output()\nprint('kept')")

    assert "clear_output" in [m["msg_type"] for m in cell.messages] or "gone" not in cell.text
    assert "kept" in cell.text


def test_override_of_displayhook_write_format_data_shows_last_expressions(nb: Notebook) -> None:
    cell = nb.check(DISPLAYED + "'the ' + 'value'")

    assert "'the value'" in cell.text


def test_override_of_showtraceback_shows_formatters_errors_in_the_cell(nb: Notebook) -> None:
    code = "class Odd:\n    def __repr__(self): raise ValueError('no repr')\ndisplay(Odd())"

    cell = nb.check(DISPLAYED + code)

    assert "no repr" in cell.text


def test_override_of_create_comm_makes_widgets_in_the_notebook(nb: Notebook) -> None:
    before = nb.value("len(get_ipython().kernel.comm_manager.comms)")
    nb.check(DISPLAYED + "import ipywidgets\nslider = ipywidgets.IntSlider(value=3)")

    assert nb.value("len(get_ipython().kernel.comm_manager.comms)") >= before + 3


def test_override_of_syntax_tb_shows_our_syntax_errors_without_frames(nb: Notebook) -> None:
    refused = nb.run("%%parfor i in range(3)\nbreak")
    plain = nb.run("exec('a b')")

    assert refused.ename == "LoopBodyError"
    assert "line 2\n    break\n    ^\nbreak ends the loop" in refused.traceback
    assert "run_code" not in refused.traceback
    assert plain.ename == "SyntaxError"
    assert "exec(" in plain.traceback
