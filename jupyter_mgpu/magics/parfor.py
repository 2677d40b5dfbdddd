"""`%%parfor`: run the cell as the body of a loop, on all engines."""

import re

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.loop_cell import explain
from jupyter_mgpu.loops.cell import read_cell, run_cell
from jupyter_mgpu.loops.options import LoopOptions
from jupyter_mgpu.magics.ranges import cell_number
from jupyter_mgpu.notebook import user_namespace
from jupyter_mgpu.output import notices
from jupyter_mgpu.start import pool_named

_OPTION_BEFORE = re.compile(r"\s*(--explain(?!\S)|--\w+(?:=|\s+)\S+)")
# Up to the first option or comment that does not stand in a text.
_HEADER = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(?!(?<!\S)--[a-z]|#).)*""")
_MAX_NAME = 40


@magics_class
class ParforMagic(Magics):
    """Parses the line, calls the library, shows the outcome. Nothing else."""

    @magic_arguments()
    @argument("--seed", type=int, help="random numbers that depend on it and the item alone")
    @argument("--workers", type=int, help="at most so many engines; 0 runs it in the kernel")
    @argument("--chunk", type=int, help="items that are sent together; chosen by default")
    @argument("--explain", action="store_true", help="say what each name is, and run nothing")
    @argument("--pool", help="the pool's name; the current one by default")
    @no_var_expand  # a header may have braces
    @cell_magic
    def parfor(self, line: str, cell: str) -> None:
        """Run the cell for each item: `%%parfor i, x in enumerate(xs) --seed 0`."""
        header, words = _split(line)
        args = parse_argstring(self.parfor, words)
        loop = read_cell(header, cell, self.shell, cell_number(self.shell))
        if args.explain:
            notices.say(explain(loop))
            return
        name = f"parfor {loop.header.text}"
        try:
            options = LoopOptions(
                args.seed,
                args.chunk,
                args.workers,
                name=name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…",
            )
            pool = pool_named(args.pool) if args.pool else None
        except (MgpuError, ValueError) as error:
            raise UsageError(str(error)) from error
        run_cell(loop, user_namespace(), options, pool)


def _split(line: str) -> tuple[str, str]:
    """Split a line into the loop's header, as it was typed, and the options around it."""
    words = []
    while found := _OPTION_BEFORE.match(line):
        words.append(found[1])
        line = line[found.end() :]
    header = _HEADER.match(line)
    end = header.end() if header else 0
    return line[:end].strip(), " ".join([*words, line[end:].partition("#")[0]])
