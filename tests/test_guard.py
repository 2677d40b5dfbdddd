"""What an engine's guard reads of processes."""

import collections
import subprocess
import threading

import pytest

from jupyter_mgpu.on_engine import guard


def test_a_process_that_ends_while_it_is_looked_at_is_gone_and_raises_nothing_else() -> None:
    for _ in range(50):
        process = subprocess.Popen(["sleep", "60"])
        looks = iter(lambda pid=process.pid: guard.start_time(pid), None)
        next(looks)
        process.kill()
        reaper = threading.Thread(target=process.wait)
        reaper.start()

        with pytest.raises(ProcessLookupError):
            collections.deque(looks, maxlen=0)

        reaper.join()
