"""A user's cells on other hosts, in a real kernel: a file with the hosts, and one option."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_hosts import Hosts

from notebooks import Notebook, wait_until

pytestmark = pytest.mark.ssh

PROFILE = """
c.Cluster.engine_launcher_class = "ssh"
c.SSHEngineSetLauncher.engines = {{"hosta": 1, "hostb": {{"n": 1, "environment": {{"OWN": "b"}}}}}}
c.SSHEngineSetLauncher.ssh_args = ["-F", {config!r}]
"""


@pytest.fixture(scope="module")
def nb(ssh_hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook beside a file that describes both hosts as `lab`, and a profile `team`."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "mgpu-clusters.toml").write_text(
        f'[lab]\nkind = "ssh"\nconfig = "{ssh_hosts.config}"\ngpus = "none"\nhosts = [\n'
        '  { name = "hosta", engines = 1 },\n  { name = "hostb", engines = 1 },\n]\n'
    )
    profile = folder / "ipython" / "profile_team"
    for part in ("security", "log", "pid", "startup"):
        (profile / part).mkdir(parents=True)
    (profile / "ipcluster_config.py").write_text(PROFILE.format(config=str(ssh_hosts.config)))
    opened = Notebook({"IPYTHONDIR": str(folder / "ipython")}, cwd=str(folder))
    try:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\nimport os, pathlib")
        opened.folder = folder
        yield opened
    finally:
        opened.close()


@pytest.fixture
def lab(nb: Notebook) -> Notebook:
    """The notebook with a pool on both hosts, the same one for all tests."""
    line = "%parpool" if nb.value(OPEN) else "%parpool 2 --cluster lab"
    cell = nb.check(line, timeout=100)
    assert "CPU on hosta" in cell.text
    assert "CPU on hostb" in cell.text
    return nb


OPEN = "mgpu.current_pool() is not None"
GROUP = """
import torch, torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group()
"""


def test_a_cell_has_the_values_of_both_hosts(lab: Notebook) -> None:
    lab.check(f"%%spmd\n{GROUP}\nx = torch.full((3,), float(rank + 1), device=device)", 100)
    lab.check("%%spmd\ndist.all_reduce(x)")

    cell = lab.check("%%spmd\nx")

    assert "ranks 0-1: tensor([3., 3., 3.])" in cell.text
    assert lab.value("[float(mgpu.current_pool()['x'][r].sum()) for r in (0, 1)]") == [9.0, 9.0]


def test_output_comes_live_and_apart_for_each_rank(lab: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = lab.submit(
        "%%spmd\nimport pathlib, socket, time\nprint(socket.gethostname())\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.02)\nprint('end')"
    )

    lab.wait_for_output(cell, "[0] hosta")
    lab.wait_for_output(cell, "[1] hostb")
    assert not cell.reply
    go.touch()

    assert lab.wait(cell).ok
    assert "[1] end" in cell.text


def test_the_first_error_keeps_its_type_and_names_its_host(lab: Notebook) -> None:
    cell = lab.run("%%spmd\n1 / (rank - 1)")

    assert cell.ename == "ZeroDivisionError"
    assert "rank 1 (CPU on hostb)" in cell.traceback


def test_stop_ends_a_cell_that_waits_in_a_collective_between_hosts(lab: Notebook) -> None:
    engines = "[engine.pid for engine in mgpu.current_pool().engines]"
    before = lab.value(engines)
    cell = lab.submit(
        f"%%spmd\n{GROUP}\nimport time\nprint('waits')\n"
        "dist.all_reduce(torch.ones(1)) if rank == 0 else time.sleep(600)"
    )
    lab.wait_for_output(cell, "[0] waits")
    lab.wait_for_output(cell, "[1] waits")

    lab.stop()

    assert lab.wait(cell).ename == "KeyboardInterrupt"
    test_a_cell_has_the_values_of_both_hosts(lab)
    assert lab.value(engines) == before


def test_tasks_and_loops_run_on_both_hosts(lab: Notebook) -> None:
    lab.check(
        "import socket\ndef slow_square(x):\n    mgpu.report(step=0, x=x)\n"
        "    print('at', socket.gethostname())\n    return x**2\n"
        "futures = [mgpu.parfeval(slow_square, x) for x in range(6)]"
    )
    assert lab.value("sorted(mgpu.fetch_next(futures).result() for _ in futures)") == [
        *(0, 1, 4, 9, 16, 25)
    ]
    hosts = lab.value("{(task.rank, task.diary) for task in futures}")
    assert hosts <= {(0, "at hosta\n"), (1, "at hostb\n")}
    assert lab.value("[task.metrics[-1]['x'] for task in futures]") == list(range(6))
    lab.check("found = [None] * 4")
    lab.check("%%parfor i in range(4)\nfound[i] = (i, socket.gethostname()[:4])")
    assert lab.value("found") == [(i, "host") for i in range(4)]


def test_stop_of_the_pool_leaves_nothing_on_its_hosts(lab: Notebook, ssh_hosts: Hosts) -> None:
    assert "was stopped" in lab.check("%parpool stop").text

    wait_until(lambda: not ssh_hosts.a.programs() and not ssh_hosts.b.programs(), 15)


def test_a_profile_of_ipyparallel_says_where_engines_run(nb: Notebook) -> None:
    nb.check("%parpool 2 --profile team --name team", timeout=100)

    cell = nb.check(
        "%%spmd --pool team\nimport os, socket\n[socket.gethostname(), os.environ.get('OWN')]"
    )

    assert "rank 0 (CPU on hosta): ['hosta', None]" in cell.text
    assert "rank 1 (CPU on hostb): ['hostb', 'b']" in cell.text
    nb.check("%parpool stop --name team")
