"""From the press of Stop to the end of the next cell on all ranks, in a real kernel."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import measure

LOOP = """%%spmd
from pathlib import Path
Path({started!r}, str(rank)).touch()
while True:
    pass
"""

COLLECTIVE = """%%spmd
import torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group()
Path({started!r}, str(rank)).touch()
if rank == 1:
    while True:
        pass
dist.all_reduce(torch.zeros(1))
"""

STUBBORN = """%%spmd
import time
from collections.abc import Iterator
from pathlib import Path
Path({started!r}, str(rank)).touch()
while True:
    try:
        time.sleep(1)
    except KeyboardInterrupt:
        pass
"""


def stop_s(notebook: measure.Notebook, source: str, presses: int) -> float:
    """Return the seconds from the first Stop until the next cell has run."""
    with tempfile.TemporaryDirectory() as started:
        cell = notebook.begin(source.format(started=started))
        for rank in range(2):
            notebook.wait_for_path(Path(started, str(rank)))
        time.sleep(0.2)  # into the loop or the collective

        start_s = time.perf_counter()
        notebook.interrupt()
        for _ in range(presses - 1):
            time.sleep(0.5)
            notebook.interrupt()
        status = notebook.end(cell)["status"]
        if status != "error":
            raise RuntimeError(f"The stopped cell ended with {status!r}, not with an error.")
        notebook.run("%%spmd\npass")
        elapsed_s = time.perf_counter() - start_s
    measure.step(f"{elapsed_s:.3f} s")
    return elapsed_s


CASES = (
    ("a loop", LOOP, 1, "<= 2 s", "<= 1 s"),
    ("a blocked collective", COLLECTIVE, 1, "<= 2 s", "<= 1 s"),
    ("ranks replaced, one Stop", STUBBORN, 1, "<= 8 s", "<= 4 s"),
    ("ranks replaced, Stop pressed twice", STUBBORN, 2, "<= 8 s", "<= 4 s"),
)


def main() -> Iterator[measure.Row]:
    with measure.Notebook() as notebook:
        notebook.run("%load_ext jupyter_mgpu\n%parpool 2")
        for name, source, presses, bar, moonshot in CASES:
            times_s = [stop_s(notebook, source, presses) for _ in range(measure.REPEATS)]
            median_s = statistics.median(times_s)
            yield measure.Row(f"Stop to usable pool: {name}", median_s, "s", bar, moonshot)
        notebook.run("%parpool stop")


if __name__ == "__main__":
    measure.emit(main())
