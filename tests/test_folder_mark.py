"""Marks in folders that hosts may share: seen while they are needed, and gone after any end."""

import subprocess
import sys
from pathlib import Path

from jupyter_mgpu.transport.folder_mark import marked

MARKS = """
import sys
from pathlib import Path
from jupyter_mgpu.transport.folder_mark import marked
with marked(Path(sys.argv[1]), "theirs") as file:
    print(file.name, flush=True)
    sys.stdin.read()
"""


def test_the_mark_of_a_killed_process_goes_at_the_next_one_and_that_of_a_living_stays(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", MARKS, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as killed, subprocess.Popen(command, **pipes) as alive:
        left, needed = killed.stdout.readline().strip(), alive.stdout.readline().strip()
        killed.kill()
        killed.wait()
        before = {file.name for file in tmp_path.iterdir()}

        with marked(tmp_path, "ours") as own:
            during = {file.name for file in tmp_path.iterdir()}

        assert before == {left, needed}
        assert during == {needed, own.name}
        alive.stdin.close()
        assert alive.wait(20) == 0
        assert not list(tmp_path.iterdir())
