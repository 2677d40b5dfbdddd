"""`%%parfeval` runs a cell in the background; `%tasks` shows what runs, waits and has ended."""

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from jupyter_mgpu import tasks
from jupyter_mgpu.background_cell import submit_cell
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.magics.ranges import cell_number, transform_of
from jupyter_mgpu.notebook import user_namespace
from jupyter_mgpu.start import pool_named
from jupyter_mgpu.widgets.live import show_tasks

LIVE = "--live"


@magics_class
class TasksMagic(Magics):
    """Parses the line, calls the library, shows the outcome. Nothing else."""

    @magic_arguments()
    @argument("name", nargs="?", help="the variable that becomes the future, and the task's name")
    @argument("--pool", help="the pool's name; the current one by default")
    @argument("--priority", type=int, default=0, help="higher ones start first")
    @argument("--timeout", type=float, help="seconds after which the task is ended")
    @cell_magic
    def parfeval(self, line: str, cell: str) -> Any:
        """Run the cell in the background on the next free engine: `%%parfeval model`."""
        args = parse_argstring(self.parfeval, line)
        if args.name is not None and not args.name.isidentifier():
            raise UsageError(f"{args.name!r} was given, but a future needs a variable's name.")
        try:
            future = submit_cell(
                pool_named(args.pool),
                cell,
                user_namespace(),
                name=args.name,
                transform=transform_of(self.shell),
                count=cell_number(self.shell),
                priority=args.priority,
                timeout=args.timeout,
            )
        except (MgpuError, ValueError) as error:
            raise UsageError(str(error)) from error
        if args.name is None:
            return future
        user_namespace()[args.name] = future
        return None

    @line_magic
    def tasks(self, line: str) -> Any:
        """List the tasks: `%tasks`; live: `%tasks --live`.

        `%tasks NAME` shows what one has printed, and its error.
        """
        name = line.strip()
        if name == LIVE:
            show_tasks()
            return None
        try:
            return tasks.show(name) if name else tasks.table()
        except MgpuError as error:
            raise UsageError(str(error)) from error
