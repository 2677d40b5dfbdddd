"""A gang: one cell or call that runs on several ranks at the same time."""

import threading
import time
from collections.abc import Callable, Sequence

from jupyter_mgpu.errors import EngineDiedError, MgpuError, PoolClosedError, TaskTimeoutError
from jupyter_mgpu.output import failures
from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.standstill import Standstill
from jupyter_mgpu.wire import Frame, Header

STOP_S = 1.5
"""A stopped cell or loop ends after so long, whatever runs; that is freed in the background."""


class Gang:
    """One cell or call on several ranks, from its submission to the last rank's end.

    Args:
        pool: Where it runs.
        task: What runs.
        output: Where its output goes.
        on_rank_done: Called once per rank, with its reply, as soon as that is there.
        repack: Packs a rank's names again, without what it no longer has.
    """

    def __init__(
        self,
        pool: Pool,
        task: Task,
        output: CellOutput,
        on_rank_done: Callable[[int, Header], None],
        repack: Callable[[int, Sequence[int]], list[Frame]] | None = None,
    ) -> None:
        self._pool = pool
        self._task = task
        self._output = output
        self._on_rank_done = on_rank_done
        self._repack = repack
        self._left = set(task.ranks)
        self._is_running = self._has_status = self._explained = False
        self._standstill = Standstill(pool.owner, task)
        self._end: Header | None = None
        self._over = threading.Event()
        self._is_shown = False  # how the ranks ended stands on the page
        self._showing = threading.Lock()
        self.replies: dict[int, tuple[Header, list[Frame]]] = {}

    def run(self) -> None:
        """Submit it and wait for its end.

        Raises:
            KeyboardInterrupt: At a Stop, within 2 s; a second Stop replaces what still runs.
            BaseException: What the first failing rank raised, with the others folded into it.
        """
        try:
            self._submit()
            while not self._is_over():
                self._look()
        except KeyboardInterrupt:
            self._stop()
            raise self._interrupted() from None
        finally:
            self._is_shown = True
            self._show_end()
        self._raise()

    def _submit(self) -> None:
        self._pool.submission.gang(self._task, self.listen)

    def _show_end(self) -> None:
        with self._showing:
            self._output.finish(self._outcomes())

    def _is_over(self) -> bool:
        try:
            return self._over.wait(self._standstill.look_s)
        except KeyboardInterrupt:
            if not self.on_stop():
                raise
            return False

    def on_stop(self) -> bool:
        """Take a Stop; True where that is all that it does for now."""
        return False

    def _look(self) -> None:
        """Say why the ranks do not move, as long as they do not."""
        text = self._standstill.explain(self._left.copy()) if self._is_running else ""
        if text or self._explained:
            self._show(text)
        self._explained = bool(text)

    def _outcomes(self) -> dict[int, str]:
        """Say how the ranks ended that did not end well."""
        words = dict.fromkeys(sorted(self._left), "stopping")
        for rank, (header, _) in self.replies.items():
            if header.get("interrupted"):
                words[rank] = "interrupted"
            elif header["status"] != "ok":
                words[rank] = _outcome(header)
        return words

    def listen(self, header: Header, frames: list[Frame]) -> bool:
        """Take an event of this gang; True when there will be no more."""
        operation = header["op"]
        if operation == "done":
            self.replies[header["rank"]] = (header, frames)
            self._left.discard(header["rank"])
            self._on_rank_done(header["rank"], header)
            if self._is_shown:  # the cell was stopped, and this rank has taken longer
                self._show_end()
        elif operation == "ended":
            self._end = header
            if not self._is_running or header.get("is_last"):
                self._left.clear()
        elif operation == "started":
            self._is_running = True
            if self._has_status:
                self._show("")
        elif operation == "missing" and self._repack is not None:
            frames = self._repack(header["rank"], header["handles"])
            self._pool.owner.resend(self._task.id, header["rank"], frames)
        elif operation == "waiting":
            self._show(_waiting_line(header))
        elif operation == "stopping":
            self._show(stopping_line(header))
        elif "rank" in header:
            self._output.handle(header["rank"], header, frames)
        is_over = self._end is not None and not self._left
        if is_over:
            self._let_go()
            self._over.set()
        return is_over

    def _let_go(self) -> None:
        """Let go of the kernel's values: late output may keep this object for long."""
        self._repack = None
        self._on_rank_done = lambda *_: None

    def _show(self, status: str) -> None:
        self._has_status = bool(status)
        self._output.status(status)

    def _stop(self) -> None:
        deadline_s = time.monotonic() + STOP_S
        self._pool.owner.interrupt(self._task.id)
        while not self._over.is_set() and (left_s := deadline_s - time.monotonic()) > 0:
            try:
                self._over.wait(left_s)
            except KeyboardInterrupt:
                self._pool.owner.interrupt(self._task.id, force=True)

    def _interrupted(self) -> KeyboardInterrupt:
        left = ", ".join(str(rank) for rank in sorted(self._left))
        text = (
            f"The cell was stopped; rank {left} still stops." if left else "The cell was stopped."
        )
        error = KeyboardInterrupt(text)
        # IPython shows this instead of the lines in here where the notebook waited.
        error.__dict__["_render_traceback_"] = lambda: [f"KeyboardInterrupt: {text}"]
        return error

    def _raise(self) -> None:
        end = self._end or {}
        if end.get("reason") == "timeout":
            raise TaskTimeoutError(end["message"])
        if end.get("reason") == "no engines":
            raise MgpuError(end["message"])
        if end.get("state") == "cancelled":
            raise PoolClosedError(f"The cell was cancelled: {end.get('reason')}.")
        errors = {
            rank: self._rebuild(rank, header, frames)
            for rank, (header, frames) in self.replies.items()
            if header["status"] != "ok"
        }
        if errors:
            # A death is the cause, even if another rank's broken connection was heard of first.
            died = [r for r, (h, _) in self.replies.items() if h.get("is_replaced") is False]
            raise failures.merge(errors, died[0] if died else end.get("first"))

    def _rebuild(self, rank: int, header: Header, frames: list[Frame]) -> BaseException:
        if header["status"] == "died":
            return EngineDiedError(header["message"], rank=rank, exit_code=header["exit_code"])
        # Nobody pressed Stop: we have interrupted this rank, because another one failed.
        header["failure"]["aborted"] |= header["interrupted"]
        return failures.rebuild(header["failure"], frames, rank, self._pool.device(rank))


def output_of(
    pool: Pool, ranks: Sequence[int], place: Publisher, *, is_quiet: bool = False
) -> CellOutput:
    """Make what shows the output of some ranks of a pool in a cell."""
    return CellOutput(
        ranks,
        place,
        quiet=is_quiet,
        log_paths={rank: str(pool.owner.log(rank)) for rank in ranks},
        labels={rank: pool.device(rank) for rank in ranks},
        send=pool.owner.post,
    )


def _outcome(header: Header) -> str:
    """Say in a word how a rank ended that did not end well."""
    if header["status"] == "died":
        return "replaced" if header.get("is_replaced") else "died"
    return "aborted" if header["failure"].get("aborted") else str(header["failure"]["ename"])


def stopping_line(header: Header) -> str:
    """Say which ranks do not end at a Stop."""
    ranks = ", ".join(str(rank) for rank in header["ranks"])
    return f"rank {ranks}: stopping; a second Stop replaces what still runs"


def _waiting_line(header: Header) -> str:
    busy = [
        f"rank {rank}: {name!r}, {int(seconds) // 60}:{int(seconds) % 60:02d}"
        for rank, name, seconds in header["busy"]
    ]
    idle = ",".join(str(rank) for rank in header["idle"])
    offer = f" (idle: add --ranks {idle} to run there)" if idle and busy else ""
    return f"waiting for {'; '.join(busy) or 'its turn'}{offer}"
