"""`%%spmd`: run a cell on every rank."""

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class, needs_local_scope
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from jupyter_mgpu.blocks import CellOptions, run_cell
from jupyter_mgpu.errors import MgpuError, SendingError
from jupyter_mgpu.magics.ranges import cell_number, parse_ranks, transform_of
from jupyter_mgpu.start import pool_named


@magics_class
class SpmdMagic(Magics):
    """Parses the line, calls the library. Nothing else."""

    @magic_arguments()
    @argument("--ranks", help="only these ranks, such as 0,2-3")
    @argument("--pool", help="the pool's name; the current one by default")
    @argument("--bind", help="names that the kernel gets as composites afterwards, such as x,y")
    @argument("--send", action="append", help="send this name, whatever the engines did with it")
    @argument("--keep", action="append", help="keep the engines' value of this name")
    @argument("--no-send", action="store_true", help="send no names at all")
    @argument("--timeout", type=float, help="seconds after which the cell is ended")
    @argument("--quiet", action="store_true", help="show no output but errors")
    @needs_local_scope
    @cell_magic
    def spmd(self, line: str, cell: str, local_ns: object = None) -> None:  # noqa: ARG002 - IPython's signature
        """Run the cell on every rank: `%%spmd --ranks 0,1`."""
        args = parse_argstring(self.spmd, line)
        options = CellOptions(
            bind=_names(args.bind),
            send=_names(",".join(args.send or [])),
            keep=_names(",".join(args.keep or [])),
            sends_nothing=args.no_send,
            timeout_s=args.timeout,
            is_quiet=args.quiet,
            count=cell_number(self.shell),
            transform=transform_of(self.shell),
        )
        try:
            pool = pool_named(args.pool)
            ranks = parse_ranks(args.ranks) if args.ranks else pool.ranks
            missing = sorted(set(ranks) - set(pool.ranks))
            if missing:
                raise UsageError(f"Rank {missing[0]} was named; the pool has {list(pool.ranks)}.")
        except (MgpuError, ValueError) as error:
            raise UsageError(str(error)) from error
        try:
            run_cell(pool, cell, ranks, options)
        except SendingError as error:
            raise UsageError(str(error)) from error


def _names(text: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    for name in names:
        if not name.isidentifier():
            raise UsageError(f"{name!r} was given, but it is no name of a variable.")
    return names
