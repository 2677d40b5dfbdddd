"""The pool's store: `python -m jupyter_mgpu.on_engine.store ADDRESS PORT FD`.

Takes over a listening socket, serves torch's TCPStore on it, and ends with its owner.
"""

import os
import select
import sys
import threading
import time
from pathlib import Path

POLL_S = 1.0


def serve(address: str, port: int, fd: int) -> None:
    """Serve the store until the owner ends."""
    owner = threading.Thread(target=_end_with_the_owner, daemon=True)
    owner.start()
    from torch.distributed import TCPStore

    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    owner.join()
    del store


def _end_with_the_owner() -> None:
    pid_text, _, start_time = os.environ["MGPU_OWNER"].partition(":")
    wait_for_exit(int(pid_text), start_time)
    os._exit(0)


def wait_for_exit(pid: int, start_time: str) -> None:
    """Block until the process with this pid and start time has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # no pidfd here: ask again and again
        while _is_same_process(pid, start_time):
            time.sleep(POLL_S)
        return
    if _is_same_process(pid, start_time):
        select.select([pidfd], [], [])


def _is_same_process(pid: int, start_time: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return _is_running(pid) if start_time == "0" else False
    return start_time in ("0", stat.rpartition(")")[2].split()[19])


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
