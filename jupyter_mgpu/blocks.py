"""Runs a cell or a function on several ranks at the same time.

The path of a cell: `Sender.plan` packs the names it reads -> a gang waits for its ranks -> each
engine runs it -> outputs, errors and rebound names come back -> one merged error, or none.
"""

import ast
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu.composite import Composite
from jupyter_mgpu.errors import EngineDiedError, MgpuError, PoolClosedError, TaskTimeoutError
from jupyter_mgpu.output import failures, notices, publisher
from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.pool import Pool, pack_call, refuse_on_engine
from jupyter_mgpu.start import pool_named, user_namespace
from jupyter_mgpu.wire import Frame, Header

LOOK_S = 5.0
HANG_S = 30.0
"""A rank that stands so long in a collective which others have left is told as waiting."""
STOP_S = 1.8
"""A stopped cell ends after so long, whatever its ranks do; they are freed in the background."""


@dataclass(frozen=True, slots=True)
class CellOptions:
    """What the `%%spmd` line asks for."""

    bind: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    sends_nothing: bool = False
    timeout_s: float | None = None
    is_quiet: bool = False
    count: int = 0
    transform: Callable[[str], str] | None = None  # turns magics into Python


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
        self._is_running = self._has_status = False
        self._end: Header | None = None
        self._over = threading.Event()
        self.replies: dict[int, tuple[Header, list[Frame]]] = {}

    def run(self) -> None:
        """Submit it and wait for its end.

        Raises:
            KeyboardInterrupt: At a Stop, within 2 s; a second Stop replaces what still runs.
            BaseException: What the first failing rank raised, with the others folded into it.
        """
        self._pool.submit_gang(self._task, self.listen)
        try:
            while not self._over.wait(LOOK_S):
                self._look_for_a_hang()
        except KeyboardInterrupt:
            self._stop()
            raise self._interrupted() from None
        finally:
            self._output.finish(self._outcomes())
        self._raise()

    def _look_for_a_hang(self) -> None:
        """Say which ranks wait in a collective for ranks that have ended or do not come."""
        if not self._is_running:
            return
        places = {rank: self._place(rank) for rank in sorted(self._left)}
        waiting = {r: p for r, p in places.items() if p and p["still_s"] > HANG_S}
        if waiting and len(waiting) < len(self._task.ranks):
            parts = [
                f"rank {rank} in {place['operation']} since {place['still_s']:.0f} s "
                f"({place['where']})"
                for rank, place in waiting.items()
            ]
            ended = sorted(set(self._task.ranks) - self._left)
            parts += [f"rank {rank} has ended" for rank in ended]
            self._show("waits: " + "; ".join(parts))

    def _place(self, rank: int) -> dict[str, Any] | None:
        try:
            group = self._pool.ask(rank, "stack")["group"]
        except (MgpuError, TimeoutError):
            return None
        return group if group["operation"] else None

    def _outcomes(self) -> dict[int, str]:
        """Say how the ranks ended that did not end well."""
        words = dict.fromkeys(sorted(self._left), "stopping")
        for rank, (header, _) in self.replies.items():
            if header.get("interrupted"):
                words[rank] = "interrupted"
            elif header["status"] != "ok":
                words[rank] = header.get("failure", {}).get("ename", "died")
        return words

    def listen(self, header: Header, frames: list[Frame]) -> bool:
        """Take an event of this gang; True when there will be no more."""
        operation = header["op"]
        if operation == "done":
            self.replies[header["rank"]] = (header, frames)
            self._left.discard(header["rank"])
            self._on_rank_done(header["rank"], header)
        elif operation == "ended":
            self._end = header
            if not self._is_running:
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
            ranks = ", ".join(str(rank) for rank in header["ranks"])
            self._show(f"rank {ranks}: stopping; a second Stop replaces what still runs")
        elif "rank" in header:
            self._output.handle(header["rank"], header, frames)
        is_over = self._end is not None and not self._left
        if is_over:
            self._over.set()
        return is_over

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


def run_cell(pool: Pool, source: str, ranks: Sequence[int], options: CellOptions) -> None:
    """Run a cell on some ranks of a pool and show what they print.

    Raises:
        SendingError: If the names that it reads cannot be sent as they stand; nothing has run.
        BaseException: As `Gang.run`.
    """
    refuse_on_engine("%%spmd")
    ranks = tuple(ranks)
    if options.transform is not None:
        _check_syntax(options.transform(source))
    plan = pool.sender.plan(
        source,
        ranks,
        send=options.send,
        keep=options.keep,
        send_nothing=options.sends_nothing,
        count=options.count,
        ask_changed=lambda asked, names: _ask_changed(pool, asked, names),
    )
    place = publisher.capture()
    notices.show_dim(place, [] if options.is_quiet else plan.lines)
    output = _output(pool, ranks, place, is_quiet=options.is_quiet)
    task = _task(pool, ranks, _title(source), options.timeout_s)
    task.header |= {"kind": "cell", "source": source, "count": options.count}
    task.frames = {rank: plan.frames[rank] for rank in ranks}

    def on_rank_done(rank: int, header: Header) -> None:
        if header.get("namespace"):  # the rank had received the names
            plan.ran(rank, header["namespace"])

    Gang(pool, task, output, on_rank_done, plan.repack).run()
    for name in options.bind:
        user_namespace()[name] = pool[name]
    pool.sender.bound_from_engines(options.bind)


def _check_syntax(transformed: str) -> None:
    """Raise the cell's SyntaxError here, where its lines are, before anything runs."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    # The magic's own line stands above the cell's body.
    compile("\n" + transformed, "<the %%spmd cell>", "exec", flags, dont_inherit=True)


def _ask_changed(pool: Pool, ranks: Sequence[int], names: Sequence[str]) -> dict[int, set[str]]:
    asked = {rank: pool.owner.rpc(rank, "changed", names=list(names)) for rank in ranks}
    return {rank: set(future.result()) for rank, future in asked.items()}


def spmd(
    fn: Callable[..., Any],
    /,
    *args: Any,
    pool: Pool | None = None,
    ranks: Sequence[int] | None = None,
    timeout: float | None = None,
    **kwargs: Any,
) -> Composite:
    """Call a function on all ranks at the same time.

    Args:
        fn: What to call; collectives work in it.
        *args: Its arguments, the same on all ranks.
        pool: Where to run; the current pool by default, started if there is none.
        ranks: Only these ranks.
        timeout: Seconds after which the call is ended.
        **kwargs: Its keyword arguments.

    Returns:
        The results, which stay on the engines until they are fetched by `[rank]`; they are
        freed there when the composite is.

    Raises:
        BaseException: What the first failing rank raised, with the others folded into it.
    """
    refuse_on_engine("spmd")
    pool = pool or pool_named(None)
    chosen = pool.ranks if ranks is None else tuple(ranks)
    name = getattr(fn, "__name__", type(fn).__name__)
    key = f"result of {pool.next_id(name)}"
    task = _task(pool, chosen, name, timeout)
    task.header |= {"kind": "call", "keep": key}
    task.frames = pack_call(fn, args, kwargs)
    output = _output(pool, chosen, publisher.capture())
    Gang(pool, task, output, lambda *_: None).run()
    return Composite(
        pool,
        key,
        label=f"of {name}()",
        ranks=chosen,
        release=lambda: pool.release(key, chosen),
    )


def _task(pool: Pool, ranks: tuple[int, ...], name: str, timeout_s: float | None) -> Task:
    task = Task(
        id=pool.next_id("g"),
        name=name,
        header={},
        frames=[],
        ranks=ranks,
        is_gang=True,
        timeout_s=timeout_s,
        info={"created": datetime.now(UTC).isoformat(timespec="milliseconds")},
    )
    pool.add_follow(task)
    return task


def _output(
    pool: Pool,
    ranks: tuple[int, ...],
    place: publisher.Publisher,
    *,
    is_quiet: bool = False,
) -> CellOutput:
    return CellOutput(
        ranks,
        place,
        quiet=is_quiet,
        log_paths={rank: str(pool.owner.engines[rank].log) for rank in ranks},
        labels={rank: pool.device(rank) for rank in ranks},
        send=pool.owner.post,
    )


def _title(source: str) -> str:
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    first = lines[0] if lines else "an empty cell"
    return first if len(first) <= 40 else first[:39] + "…"


def _waiting_line(header: Header) -> str:
    busy = [
        f"rank {rank}: {name!r}, {int(seconds) // 60}:{int(seconds) % 60:02d}"
        for rank, name, seconds in header["busy"]
    ]
    idle = ",".join(str(rank) for rank in header["idle"])
    offer = f" (idle: add --ranks {idle} to run there)" if idle and busy else ""
    return f"waiting for {'; '.join(busy) or 'its turn'}{offer}"
