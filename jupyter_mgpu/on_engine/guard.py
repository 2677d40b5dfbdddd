"""Ends this process when the process that owns the pool ends, however that happens.

A tiny watchdog is forked first thing, before any thread or heavy import exists: it works while
this process holds the GIL, and does not depend on which thread launched it. It also holds the
locks of this engine's GPU leases, so that a lease ends after its engine and not before.
Standard library only: the watchdog's memory is what was imported by then.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
from pathlib import Path

GRACE_MS = 2000
"""How long a process may take to end by itself (SIGTERM) once its owner is gone."""

_PR_SET_NAME = 15


def read_stat(pid: int) -> list[str]:
    """Read what the system tells of a process, from its state (field 3) on.

    Raises:
        ProcessLookupError: If there is no such process.

    Source:
        proc_pid_stat(5).
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:  # ESRCH instead when it ends between the opening and the reading
        raise ProcessLookupError(pid) from None


def start_time(pid: int) -> str:
    """Read when a process started, in clock ticks since boot: tells it from later namesakes.

    Raises:
        ProcessLookupError: If there is no such process.
    """
    return read_stat(pid)[19]


def owner_stamp() -> str:
    """Describe this process for `MGPU_OWNER`: its pid and start time."""
    return f"{os.getpid()}:{start_time(os.getpid())}"


def open_owner(stamp: str) -> int:
    """Open a pidfd of the owner.

    Raises:
        ProcessLookupError: If the owner is gone already.
    """
    pid, started = stamp.split(":")
    if start_time(int(pid)) != started:
        raise ProcessLookupError(int(pid))
    return os.pidfd_open(int(pid))


def install() -> None:
    """Fork the watchdog that `MGPU_OWNER` asks for; without an owner, do nothing."""
    stamp = os.environ.get("MGPU_OWNER")
    if not stamp:
        return
    me = os.getpid()
    try:
        owner = open_owner(stamp)
    except ProcessLookupError:
        os._exit(1)  # died before it could be watched
    mine = os.pidfd_open(me)
    ready_read, ready_write = os.pipe()
    if os.fork():
        for descriptor in (owner, mine, ready_write):
            os.close(descriptor)
        os.read(ready_read, 1)  # the leases are locked from here on
        os.close(ready_read)
        return
    try:
        os.close(ready_read)
        _become_watchdog(ready_write)
        _watch(owner, mine, me)
    finally:
        os._exit(0)


def _become_watchdog(ready: int) -> None:
    os.setsid()  # outlives the kill of the engine's process group
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"mgpu-guard", 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for path in filter(None, os.environ.get("MGPU_LEASES", "").split(os.pathsep)):
        try:
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH)  # held until this process ends
        except OSError:
            continue  # removed by hand: the pool still runs
    os.write(ready, b"1")
    os.close(ready)


def _watch(owner: int, mine: int, me: int) -> None:
    poller = select.poll()
    poller.register(owner, select.POLLIN)
    poller.register(mine, select.POLLIN)
    ended = {descriptor for descriptor, _ in poller.poll()}
    if mine not in ended:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(mine, signal.SIGTERM)
        poller.unregister(owner)
        poller.poll(GRACE_MS)
    with contextlib.suppress(OSError):
        # The engine is a session leader: this takes DataLoader workers and the like along.
        os.killpg(me, signal.SIGKILL)
    end = select.poll()
    end.register(mine, select.POLLIN)
    end.poll(GRACE_MS)
    if owner in ended:
        for path in filter(None, os.environ.get("MGPU_CLEANUP", "").split(os.pathsep)):
            _remove(path)
    end.poll()  # while the driver holds a killed process its GPU is not free: nor is the lease


def _remove(path: str) -> None:
    """Remove a file or a folder tree, as far as it is still there."""
    with contextlib.suppress(OSError):
        if Path(path).is_dir():
            for entry in os.scandir(path):
                _remove(entry.path)
            Path(path).rmdir()
        else:
            Path(path).unlink()


def exit_with_owner() -> None:
    """End this process when its owner ends, from a thread: enough where no user code runs."""
    import threading

    stamp = os.environ.get("MGPU_OWNER")
    if not stamp:
        return
    try:
        owner = open_owner(stamp)
    except ProcessLookupError:
        os._exit(1)

    def wait() -> None:
        select.select([owner], [], [])
        os._exit(1)

    threading.Thread(target=wait, name="mgpu-owner-watch", daemon=True).start()
