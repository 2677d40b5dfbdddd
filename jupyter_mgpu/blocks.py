"""Runs a cell or a function on several ranks at the same time.

The path of a cell: `Sender.plan` packs the names it reads -> a gang waits for its ranks -> each
engine runs it -> outputs, errors and rebound names come back -> one merged error, or none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.cell_text import below_magic
from jupyter_mgpu.client import name_of, pack_call
from jupyter_mgpu.composite import Composite
from jupyter_mgpu.gangs import Gang, output_of
from jupyter_mgpu.notebook import refuse_on_engine, user_namespace
from jupyter_mgpu.output import failures, notices, publisher
from jupyter_mgpu.packing import companions
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.start import pool_named
from jupyter_mgpu.wire import Header


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


def run_cell(pool: Pool, source: str, ranks: Sequence[int], options: CellOptions) -> None:
    """Run a cell on some ranks of a pool and show what they print.

    Raises:
        SendingError: If the names that it reads cannot be sent as they stand; nothing has run.
        BaseException: As `Gang.run`.
    """
    refuse_on_engine("%%spmd")
    ranks = tuple(ranks)
    if options.transform is not None:
        failures.check_syntax(below_magic(source, options.transform), "%%spmd")
    with companions.collect(pool.line):  # what it collects, the notebook's names keep alive
        plan = pool.sender.plan(
            source,
            ranks,
            send=options.send,
            keep=options.keep,
            send_nothing=options.sends_nothing,
            count=options.count,
            ask_changed=lambda asked, names: _ask_changed(pool, asked, names),
            place=pool.owner.store.place,
        )
    place = publisher.capture()
    notices.show_dim(place, [] if options.is_quiet else plan.lines)
    output = output_of(pool, ranks, place, is_quiet=options.is_quiet)
    header = {"kind": "cell", "source": source, "count": options.count}
    task = pool.submission.new_gang(
        _title(source), ranks, header, plan.take_frames(), options.timeout_s
    )

    def on_rank_done(rank: int, header: Header) -> None:
        if header.get("namespace"):  # the rank had received the names
            plan.ran(rank, header["namespace"])

    Gang(pool, task, output, on_rank_done, plan.repack).run()
    for name in options.bind:
        user_namespace()[name] = pool[name]
    pool.sender.bound_from_engines(options.bind)


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
    name = name_of(fn)
    key = f"result of {pool.submission.next_id(name)}"
    header = {"kind": "call", "keep": key}
    with companions.collect(pool.line):  # what it collects, our arguments keep alive
        frames = pack_call(fn, args, kwargs, pool.owner.store.place)
    task = pool.submission.new_gang(name, chosen, header, frames, timeout)
    del frames
    output = output_of(pool, chosen, publisher.capture())
    Gang(pool, task, output, lambda *_: None).run()
    return Composite(
        pool.values,
        key,
        label=f"of {name}()",
        ranks=chosen,
        release=lambda: pool.values.release(key, chosen),
    )


def _title(source: str) -> str:
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    first = lines[0] if lines else "an empty cell"
    return first if len(first) <= 40 else first[:39] + "…"
