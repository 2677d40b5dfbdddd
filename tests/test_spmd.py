"""`%%spmd` in a real notebook: sending, results, errors, output."""

import contextlib
import queue
from pathlib import Path

import pytest

from notebooks import Notebook, notebook, wait_for_file, wait_until


def test_the_cell_runs_on_all_ranks_and_shows_each_ranks_output(nb: Notebook) -> None:
    cell = nb.check("%%spmd\nprint('hello from', rank, 'of', world_size, 'on', device)")

    assert "[0] hello from 0 of 2 on cpu" in cell.text
    assert "[1] hello from 1 of 2 on cpu" in cell.text


def test_names_assigned_on_the_engines_stay_there(nb: Notebook) -> None:
    nb.check("%%spmd\ncounter = rank * 10")
    nb.check("%%spmd\ncounter += 1")

    assert nb.value("[mgpu.current_pool()['counter'][r] for r in (0, 1)]") == [1, 11]
    assert nb.value("'counter' in globals()") is False


def test_a_change_inside_is_sent_again(nb: Notebook) -> None:
    nb.check("import numpy as np\nx = np.zeros(3)")
    assert "[0., 0., 0.]" in nb.check("%%spmd\nx").text

    nb.check("x[0] = 5")

    assert "[5., 0., 0.]" in nb.check("%%spmd\nx").text


def test_the_side_that_rebound_a_name_last_wins(nb: Notebook) -> None:
    nb.check("y = 1")
    nb.check("%%spmd\ny = y + 1 + rank")
    assert nb.value("list(mgpu.current_pool()['y'])") == [2, 3]
    nb.check("%%spmd\ny = y * 2")
    assert nb.value("list(mgpu.current_pool()['y'])") == [4, 6]
    assert nb.value("y") == 1

    nb.check("y = 100")

    nb.check("%%spmd\nz = y")
    assert nb.value("list(mgpu.current_pool()['z'])") == [100, 100]


def test_a_name_changed_on_both_sides_is_refused_until_one_is_chosen(nb: Notebook) -> None:
    nb.check("xs = [1]")
    nb.check("%%spmd\nxs.append(2)")
    nb.check("xs.append(3)")

    refused = nb.run("%%spmd\nprint(len(xs))")
    assert refused.ename == "UsageError"
    assert "xs" in refused.evalue
    assert "--send xs" in refused.evalue
    assert "--keep xs" in refused.evalue

    assert "[0] [1, 2]" in nb.check("%%spmd --keep xs\nprint(xs)").text
    assert "[0] [1, 3]" in nb.check("%%spmd --send xs\nprint(xs)").text


def test_functions_classes_and_what_they_use_come_along(nb: Notebook) -> None:
    nb.check(
        "import math\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: float\n"
        "    def norm(self): return helper(self.x)\n"
        "def helper(v): return math.sqrt(v) + OFFSET\n"
        "def fact(n): return 1 if n < 2 else n * fact(n - 1)\n"
        "OFFSET = 1"
    )
    assert "[1] 3.0 120" in nb.check("%%spmd\nprint(Point(4.0).norm(), fact(5))").text

    nb.check("OFFSET = 2")
    assert "[1] 4.0" in nb.check("%%spmd\nprint(Point(4.0).norm())").text

    nb.check("def helper(v): return -v")
    assert "[1] -4.0" in nb.check("%%spmd\nprint(Point(4.0).norm())").text


def test_instances_made_on_the_engines_are_of_the_notebooks_class(nb: Notebook) -> None:
    nb.check("class Mine:\n    pass")
    nb.check("%%spmd\nmade = Mine()")

    assert nb.value("isinstance(mgpu.current_pool()['made'][0], Mine)") is True


def test_a_network_and_its_optimizer_stay_together(nb: Notebook) -> None:
    nb.check(
        "import torch\nnet = torch.nn.Linear(2, 1)\nbefore = net.weight.detach().clone()",
        timeout=120,
    )
    nb.check("%%spmd\nout = net(torch.ones(1, 2))", timeout=120)
    nb.check("opt = torch.optim.SGD(net.parameters(), lr=0.1)", timeout=120)
    nb.check(
        "%%spmd\nopt.zero_grad()\nnet(torch.ones(1, 2)).sum().backward()\nopt.step()", timeout=120
    )

    moved = "(mgpu.current_pool()['net'][1].weight - before).detach().flatten().tolist()"
    assert nb.value(moved) == pytest.approx([-0.1, -0.1])
    assert nb.value("bool((net.weight == before).all())") is True


def test_a_kernels_device_does_not_harm_the_engines(nb: Notebook) -> None:
    nb.check("device = 'tpu'\nrank = 99")

    cell = nb.check("%%spmd\nprint(device, rank)")

    assert "[1] cpu 1" in cell.text
    assert "device" in cell.text.split("[0]")[0]
    nb.check("del device, rank")


def test_only_some_ranks_run(nb: Notebook) -> None:
    cell = nb.check("%%spmd --ranks 1\nprint('only', rank)")

    assert cell.stdout == "only 1\n"
    refused = nb.run("%%spmd --ranks 0,7\npass")
    assert (refused.ename, "Rank 7" in refused.evalue) == ("UsageError", True)
    assert nb.run("%%spmd --ranks x\npass").ename == "UsageError"


def test_bind_gives_the_kernel_a_composite(nb: Notebook) -> None:
    nb.check("%%spmd --bind squares\nsquares = [rank ** 2]")

    assert nb.value("list(squares)") == [[0], [1]]


def test_no_send_and_quiet(nb: Notebook) -> None:
    nb.check("unsent = 1")
    assert nb.run("%%spmd --no-send\nunsent").ename == "NameError"
    assert nb.check("%%spmd --quiet\nprint('silence')").text.strip() == ""


def test_the_first_failing_rank_is_raised_with_its_own_type(nb: Notebook) -> None:
    cell = nb.run(
        "%%spmd\n"
        "import time\n"
        "def deep():\n"
        "    raise ValueError(f'rank {rank} is unhappy')\n"
        "if rank == 1:\n"
        "    deep()\n"
        "time.sleep(600)",
        timeout=60,
    )

    assert cell.ename == "ValueError"
    assert cell.evalue == "rank 1 is unhappy"
    assert "raise ValueError" in cell.traceback
    assert "rank 1" in cell.traceback
    assert "rank 0" in cell.traceback
    nb.check(
        "try:\n    get_ipython().run_cell_magic('spmd', '', 'raise KeyError(rank)')\n"
        "except KeyError as error:\n    caught = error"
    )
    assert "ranks 0-1" not in nb.check("print(caught.__notes__[0])").stdout


def test_equal_errors_are_folded(nb: Notebook) -> None:
    cell = nb.run("%%spmd\n1 / 0")

    assert cell.ename == "ZeroDivisionError"
    assert "ranks 0-1" in cell.traceback
    assert cell.traceback.count("1 / 0") == 1


def keep_busy(nb: Notebook, folder: Path) -> None:
    """Occupy rank 0 behind the owner's back, as tidying up after a failed cell does, until `go`."""
    nb.check(
        "def occupy(folder):\n"
        "    import pathlib, time\n"
        "    pathlib.Path(folder, 'begun').touch()\n"
        "    while not pathlib.Path(folder, 'go').exists(): time.sleep(0.02)\n"
        "client = mgpu.current_pool().client\n"
        "client.wait_for_engines(2, timeout=30, interactive=False)\n"
        f"late = client[0].apply_async(occupy, {str(folder)!r})"
    )
    wait_for_file(folder / "begun")


def test_equal_errors_are_folded_when_a_rank_begins_late(nb: Notebook, tmp_path: Path) -> None:
    keep_busy(nb, tmp_path)
    cell = nb.submit(
        f"%%spmd\nimport pathlib\npathlib.Path({str(tmp_path)!r}, str(rank)).touch()\n1 / 0"
    )
    wait_for_file(tmp_path / "1")
    (tmp_path / "go").touch()

    nb.wait(cell)

    assert cell.ename == "ZeroDivisionError"
    assert "ranks 0-1" in cell.traceback


def test_a_rank_that_does_not_begin_holds_a_failed_cell_up_for_a_moment_only(
    nb: Notebook, tmp_path: Path
) -> None:
    keep_busy(nb, tmp_path)

    cell = nb.run("%%spmd\nif rank == 1: 1 / 0")  # while rank 0 is occupied

    assert cell.ename == "ZeroDivisionError"
    nb.check("%%spmd\npass")


def test_a_rank_that_runs_another_clients_work_is_named(nb: Notebook, tmp_path: Path) -> None:
    keep_busy(nb, tmp_path)

    cell = nb.submit("%%spmd\nprint('ran', rank)")
    nb.wait_for_output(cell, "rank 0 has not begun: it runs work of another client", 30)

    (tmp_path / "go").touch()
    cell = nb.wait(cell)
    assert "has not begun" not in cell.text
    assert "[0] ran 0" in cell.text


@pytest.mark.parametrize("magic", ["%%spmd", "%%parfeval task"])
def test_a_syntax_error_names_its_line_before_anything_runs(nb: Notebook, magic: str) -> None:
    cell = nb.run(f"{magic}\nx = 1\nfor in y:\n    pass")

    assert cell.ename == "SyntaxError"
    assert "line 3\n    for in y" in cell.traceback
    assert "File" not in cell.traceback.replace(f'File "<the {magic.split()[0]} cell>"', "")


@pytest.mark.parametrize("magic", ["%%spmd", "%%parfeval task"])
def test_a_traceback_counts_the_empty_lines_at_the_start_of_a_cell(nb: Notebook, magic) -> None:
    cell = nb.run(f"{magic}\n\n  \n1 / 0")
    if magic != "%%spmd":
        cell = nb.run("task.result()")

    assert cell.ename == "ZeroDivisionError"
    assert "line 4\n    1 / 0" in cell.traceback


def test_equal_last_values_are_folded(nb: Notebook) -> None:
    assert "ranks 0-1: 'same'" in nb.check("%%spmd\n'same'").text
    different = nb.check("%%spmd\nrank").text
    assert "rank 0" in different
    assert "rank 1" in different
    assert nb.check("%%spmd\nrank;").text.strip() == ""


def test_figures_and_rich_output_arrive_with_their_rank(nb: Notebook) -> None:
    cell = nb.check(
        "%%spmd\n"
        "import matplotlib.pyplot as plt\n"
        "from IPython.display import HTML, display\n"
        "plt.plot([1, 2])\n"
        "plt.show()\n"
        "display(HTML(f'<b>bold {rank}</b>'))",
        timeout=120,
    )

    assert sum("image/png" in data for data in cell.displays) == 2
    markup = " ".join(data.get("text/html", "") for data in cell.displays)
    assert "<b>bold 0</b>" in markup
    assert "<b>bold 1</b>" in markup


def test_output_of_c_code_and_children_is_shown(nb: Notebook) -> None:
    cell = nb.check(
        "%%spmd\nimport os\nos.write(1, b'from the descriptor\\n')\nos.system('echo from a child')"
    )

    assert "[0] from the descriptor" in cell.text
    assert "[1] from a child" in cell.text


def test_progress_bars_stay_in_place(nb: Notebook) -> None:
    cell = nb.check("%%spmd\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(50)): pass", 120)

    assert cell.text.count("50/50") == 2
    assert "0/50" not in cell.text.replace("50/50", "")


def test_a_flood_is_limited_and_complete_in_the_log(nb: Notebook) -> None:
    cell = nb.check(
        "%%spmd\n"
        "import time\n"
        "end = time.monotonic() + 2\n"
        "n = 0\n"
        "while time.monotonic() < end:\n"
        "    n += 1\n"
        "    print('x' * 100)",
        timeout=60,
    )

    assert len(cell.messages) < 50 * cell.seconds + 50
    assert sum(len(str(m["content"])) for m in cell.messages) < 1_500_000
    assert "log" in cell.text
    assert nb.value("mgpu.current_pool()['n'][0] > 1000") is True


def test_large_writes_to_stderr_do_not_block(nb: Notebook) -> None:
    nb.check(
        "%%spmd\nimport os, warnings\nos.write(2, b'x' * 10**6)\n"
        "for i in range(10_000): warnings.warn(f'number {i}')",
        timeout=60,
    )


@pytest.mark.oldest
def test_a_cell_may_await(nb: Notebook) -> None:
    cell = nb.check("%%spmd\nimport asyncio\nawait asyncio.sleep(0.01)\nprint('slept', rank)")

    assert "[1] slept 1" in cell.text


def test_magics_and_shell_lines_work_in_a_cell(nb: Notebook) -> None:
    cell = nb.check("%%spmd\nfiles = !echo one two\nprint(files[0])\n%pwd")

    assert "[0] one two" in cell.text


def test_input_is_refused_with_a_reason(nb: Notebook) -> None:
    cell = nb.run("%%spmd\ninput('name? ')")

    assert "rank" in cell.evalue
    assert "input" in cell.evalue


def test_what_cannot_be_sent_is_named_before_anything_runs(nb: Notebook) -> None:
    nb.check("import threading\nholder = {'deep': threading.Lock()}")

    cell = nb.run("%%spmd\nprint('ran')\nholder")

    assert "holder" in cell.evalue
    assert "ran" not in cell.text


def test_a_time_out_ends_the_cell(nb: Notebook) -> None:
    cell = nb.run("%%spmd --timeout 0.5\nimport time\ntime.sleep(600)")

    assert cell.ename == "TaskTimeoutError"
    assert "0.5 s" in cell.evalue
    nb.check("%%spmd\npass")


def test_spmd_of_a_function_keeps_its_values_on_the_engines(nb: Notebook) -> None:
    nb.check("def where(a, b=0):\n    return (rank, a + b)")
    nb.check("values = mgpu.spmd(where, 1, b=2)")

    assert nb.value("list(values)") == [(0, 3), (1, 3)]
    assert "rank 1: tuple" in nb.check("values").result
    nb.check("import gc\ndel values; gc.collect()")


def test_an_engine_that_dies_in_a_cell_is_replaced_and_the_loss_is_told(nb: Notebook) -> None:
    nb.check("seed = 5")
    nb.check("%%spmd\nstate = seed + rank")

    cell = nb.run("%%spmd\nimport os\nif rank == 0: os._exit(3)")
    assert cell.ename == "EngineDiedError"
    assert "exited with code 3" in cell.evalue

    nb.check("%%spmd\nagain = seed")
    refused = nb.run("%%spmd\nprint(state)")
    assert refused.ename == "UsageError"
    assert "state" in refused.evalue
    assert "rank 0" in refused.evalue
    assert "[1] 6" in nb.check("%%spmd --ranks 1\nprint('[1]', state)").text
    nb.check("%%spmd\nstate = seed")
    nb.check("%%spmd\nstate")


def start_slowpoke(nb: Notebook, go: Path) -> None:
    """Occupy a rank by a task that ends when a file is there."""
    nb.check(
        "def wait_for(path):\n"
        "    import pathlib, time\n"
        "    while not pathlib.Path(path).exists(): time.sleep(0.05)\n"
        f"slow = mgpu.parfeval(wait_for, {str(go)!r}, name='slowpoke')"
    )


def test_a_cell_waits_for_tasks_and_says_for_what(nb: Notebook, tmp_path: Path) -> None:
    start_slowpoke(nb, tmp_path / "go")
    waiting = nb.submit("%%spmd\nprint('my turn')")
    nb.wait_for_output(waiting, "slowpoke")
    (tmp_path / "go").touch()

    cell = nb.wait(waiting)

    assert cell.ok
    assert "my turn" in cell.text


def test_stop_while_a_cell_waits_cancels_only_the_wait(nb: Notebook, tmp_path: Path) -> None:
    start_slowpoke(nb, tmp_path / "go")
    waiting = nb.submit("%%spmd\nprint('my turn')")
    nb.wait_for_output(waiting, "slowpoke")
    nb.stop()

    cell = nb.wait(waiting)

    assert cell.ename == "KeyboardInterrupt"
    assert "my turn" not in cell.text
    (tmp_path / "go").touch()
    assert nb.value("slow.result(60)") is None


def test_cells_and_tasks_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch here')\n")

    with notebook({"PYTHONPATH": str(tmp_path)}) as nb:
        nb.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 2")
        assert nb.run("import torch").ename == "ImportError"
        nb.check("x = [1, 2]")

        assert "[1] 4" in nb.check("%%spmd\nprint(sum(x) + rank)").text
        assert nb.run("%%spmd\nif rank == 1: 1 / 0").ename == "ZeroDivisionError"
        assert nb.value("mgpu.parfeval(pow, 6, 2).result(60)") == 36


def test_a_death_in_a_cell_is_told_in_full_once(nb: Notebook) -> None:
    cell = nb.run(
        "%%spmd --ranks 1\nimport os, signal\nprint('last words', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    told = [cell.stdout]

    def is_replaced() -> bool:
        with contextlib.suppress(queue.Empty):
            message = nb.client.get_iopub_msg(timeout=0.05)
            told.append(message["content"].get("text", ""))
        return "A new engine runs on rank 1" in "".join(told)

    wait_until(is_replaced, 60, "what is told of the new engine")
    assert cell.ename == "EngineDiedError"
    assert "Its last lines" in cell.evalue
    assert cell.evalue.endswith("last words")
    assert "SIGKILL" in "".join(told)
    assert "Its last lines" not in "".join(told)
