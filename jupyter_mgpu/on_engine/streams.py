"""Captures what a task prints, whoever writes it, and says which task it was.

The path of a line: Python's `sys.stdout.write` -> the rank's log file -> the task's `Backlog` ->
`emit`. C code and child processes write to descriptors 1 and 2, which *are* the log file: their
writes can neither block nor get lost, even when the process dies in them or holds the GIL. What
they added is read back from the file. Because our own writes are appended too, a gap before one
of them is exactly what somebody else wrote meanwhile, so the order of lines is right.
"""

import codecs
import contextlib
import fcntl
import os
import stat
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_mgpu.on_engine import captures, failure
from jupyter_mgpu.on_engine.backlog import MAX_CHARS, Backlog
from jupyter_mgpu.on_engine.display import DisplayHooks, forbid_input

Emit = Callable[[dict[str, Any], list[Any]], None]

POLL_S = 0.015
QUIET_POLL_S = 0.05
QUIET_AFTER_S = 1.0
IDLE_POLL_S = 0.25
"""How often the log is looked at: while text comes, in a silent task, without a task. What Python
code writes needs no poll."""
READ_BYTES = 2**20
_TASK = "_mgpu_task"


class TaskOutput:
    """The output of this process, told apart by task.

    Args:
        emit: Sends one message to the owner; callable from any thread.
        log_fd: The rank's log file, open for appending; -1 for none.
        rank: This engine's place in the pool.
    """

    def __init__(self, emit: Emit, log_fd: int, rank: int) -> None:
        self._emit = emit
        self._rank = rank
        self._log_fd = log_fd
        self._current: str | None = None
        self._backlogs: dict[str, Backlog] = {}
        # Re-entrant: a finalizer or a signal handler may print while a write is under way.
        self._lock = threading.RLock()
        self._send_lock = threading.RLock()
        self._wake = threading.Event()
        self._is_resting = False
        self._active_at = time.monotonic()
        self._is_child = False
        self._is_closed = False
        self._write_fd = self._read_fd = -1
        self._seen = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._originals: dict[str, Callable[[str], Any]] = {}
        self._displays: DisplayHooks | None = None
        self._thread = threading.Thread(target=self._run, name="mgpu-output", daemon=True)

    def install(self, shell: Any = None) -> None:
        """Put the hooks in: streams, descriptors 1 and 2, threads, displays, input.

        Call it once, when `sys.stdout` and `sys.stderr` are those that user code will see.

        Args:
            shell: The IPython shell whose displays are captured; None for text only.
        """
        if self._log_fd >= 0 and stat.S_ISREG(os.fstat(self._log_fd).st_mode):
            self._take_descriptors()
        for name in ("stdout", "stderr"):
            self._take_stream(name, getattr(sys, name))
        _mark_threads(self)
        os.register_at_fork(after_in_child=self._after_fork)
        forbid_input(lambda: self.task, self._rank)
        if shell is not None:
            self._displays = DisplayHooks(self, shell)
            self._displays.install()
            prefer_text_bars()
            failure.name_cells(getattr(shell.compile, "format_code_name", None))
        self._thread.start()

    def _take_descriptors(self) -> None:
        flags = fcntl.fcntl(self._log_fd, fcntl.F_GETFL)
        fcntl.fcntl(self._log_fd, fcntl.F_SETFL, flags | os.O_APPEND)
        path = f"/proc/self/fd/{self._log_fd}"
        # Descriptors of our own: the position after a write must not be moved by somebody else.
        self._write_fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._read_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._seen = os.fstat(self._log_fd).st_size
        for descriptor in (1, 2):
            os.dup2(self._log_fd, descriptor)

    def _take_stream(self, name: str, stream: Any) -> None:
        self._originals[name] = stream.write
        stream.write = lambda text: self.write(name, text)
        if self._write_fd >= 0:
            stream.echo = None  # would come back to us through the descriptor
            stream.fileno = lambda: 1 if name == "stdout" else 2

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._is_closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)
        self._pump(everything=True)

    # --- tasks -------------------------------------------------------------------------

    @property
    def task(self) -> str | None:
        """The task that the calling thread works for."""
        return getattr(threading.current_thread(), _TASK, None) or self._current

    @contextlib.contextmanager
    def working_for(self, task: str) -> Iterator[None]:
        """Attribute what the calling thread writes in a with-block to a task, also an ended one."""
        thread = threading.current_thread()
        before = getattr(thread, _TASK, None)
        setattr(thread, _TASK, task)
        try:
            yield
        finally:
            setattr(thread, _TASK, before)

    def begin(self, task: str) -> None:
        """Attribute the output from here on to a task."""
        with self._lock:
            self._catch_up()  # what came before belongs to nobody
            self._current = task
            self._active_at = time.monotonic()
        self._nudge()

    def end(self, task: str) -> None:
        """End a task: all its output has been handed to `emit` when this returns."""
        self.flush()
        with self._lock:
            if self._current == task:
                self._current = None

    def flush(self) -> None:
        """Hand everything written so far to `emit`."""
        self._pump(everything=True)

    def flush_figures(self) -> None:
        """Show the open figures, as the end of a cell does; cells do it by `post_execute`."""
        if self._displays is not None:
            self._displays.flush_figures()

    def on_comm(self, header: dict[str, Any], frames: list[Any]) -> None:
        """Hand a message of the front end to the widget on this engine that it is for."""
        if self._displays is not None:
            self._displays.comms.receive(header, frames)

    # --- writing -----------------------------------------------------------------------

    def write(self, name: str, text: str) -> int:
        """Take text that Python code wrote to a stream."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._is_child:
            os.write(1 if name == "stdout" else 2, text.encode("utf-8", "backslashreplace"))
            return len(text)
        task, capture = self.task, captures.current()
        with self._lock:
            self._log(text)
            if task is None:
                self._originals[name](text)
            elif capture is None:
                self._add_text(task, name, text)
        if capture is not None:
            capture.write(name, text)
        self._nudge()
        return len(text)

    def _log(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        if self._write_fd < 0:
            if self._log_fd >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._log_fd, data)
            return
        try:
            written = os.write(self._write_fd, data)
        except OSError:
            return  # a full disk must not end the task
        end = os.lseek(self._write_fd, 0, os.SEEK_CUR)
        if end - written > self._seen:
            self._read_until(end - written)
        self._seen = end

    def _add_text(self, task: str, name: str, text: str) -> None:
        if text:
            self._backlog(task).add_text(name, text)

    def _backlog(self, task: str) -> Backlog:
        backlog = self._backlogs.get(task)
        if backlog is None:
            backlog = self._backlogs[task] = Backlog(task, self._rank)
        return backlog

    def add_message(self, header: dict[str, Any], frames: list[Any], task: str) -> None:
        """Queue a display or a widget's message behind the text written so far."""
        with self._lock:
            self._catch_up()
            message = {"task": task, "rank": self._rank, **header}
            self._backlog(task).add_message(message, frames)
        self._nudge()

    # --- reading back what C code and child processes wrote ----------------------------

    def _catch_up(self) -> None:
        if self._read_fd >= 0:
            self._read_until(os.fstat(self._read_fd).st_size)

    def _read_until(self, end: int) -> None:
        """Take what others appended to the log, the last part of it if it is much."""
        dropped = 0
        while end - self._seen > MAX_CHARS:
            wanted = min(READ_BYTES, end - self._seen - MAX_CHARS)
            data = os.pread(self._read_fd, wanted, self._seen)
            if not data:
                break
            dropped += data.count(b"\n")
            self._seen += len(data)
        data = os.pread(self._read_fd, max(end - self._seen, 0), self._seen)
        self._seen = end
        text = self._decoder.decode(data)
        if self._current is None:
            if text:
                self._originals["stdout"](text)
            return
        self._backlog(self._current).note_dropped(dropped)
        self._add_text(self._current, "stdout", text)

    # --- sending -----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed:
            # Said before looking: who writes after the look sees it, and wakes us.
            self._is_resting = True
            pause_s = self._pause_s()
            self._is_resting = pause_s > POLL_S
            if self._wake.wait(pause_s):
                self._wake.clear()
            self._is_resting = False
            # A connection that is gone must not end the thread: another may come.
            with contextlib.suppress(Exception):
                self._pump(everything=False)

    def _nudge(self) -> None:
        if self._is_resting:
            self._is_resting = False  # once is enough: a flood must not pay for it
            self._wake.set()

    def _pause_s(self) -> float:
        if any(list(self._backlogs.values())):
            return POLL_S
        if time.monotonic() - self._active_at < QUIET_AFTER_S:
            return POLL_S  # also between short tasks: waking a thread for each would cost more
        return IDLE_POLL_S if self._current is None else QUIET_POLL_S

    def _pump(self, *, everything: bool) -> None:
        with self._send_lock:
            with self._lock:
                self._catch_up()
                now = time.monotonic()
                messages = [
                    message
                    for backlog in self._backlogs.values()
                    for message in backlog.take(now, everything=everything)
                ]
                if messages:
                    self._active_at = now
                for task in [t for t, b in self._backlogs.items() if not b]:
                    if task != self._current:
                        del self._backlogs[task]
            for header, frames in messages:
                self._emit(header, frames)

    def _after_fork(self) -> None:
        # The child's print goes to the descriptor, where the parent finds it.
        self._is_child = True
        self._lock = threading.RLock()


def _mark_threads(output: TaskOutput) -> None:
    """Note on every thread which task started it."""
    start = threading.Thread.start

    def start_marked(self: threading.Thread) -> None:
        if not hasattr(self, _TASK):
            setattr(self, _TASK, output.task)
        start(self)

    threading.Thread.start = start_marked  # type: ignore[method-assign]


def prefer_text_bars() -> None:
    """Let `tqdm.auto` draw text: a bar in the rank's lane also stands in the saved notebook."""
    module = types.ModuleType("tqdm.autonotebook")

    def from_std(name: str) -> Any:
        import tqdm.std

        return getattr(tqdm.std, name)

    module.__getattr__ = from_std  # type: ignore[method-assign]
    sys.modules.setdefault("tqdm.autonotebook", module)
