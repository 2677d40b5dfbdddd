"""`%parpool`: start, show, restart or stop the notebook's pool."""

import shlex
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from jupyter_mgpu import control
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.magics.ranges import parse_ranks, parse_size
from jupyter_mgpu.opening import kept_pool
from jupyter_mgpu.output.lane import ranks_text
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.pools import find_pool
from jupyter_mgpu.start import IDLE_TIMEOUT_S, current_pool, parpool, pool_named

COMMANDS = ("status", "restart", "stop", "detach")


@magics_class
class ParpoolMagic(Magics):
    """Parses the line, calls the library, shows the outcome. Nothing else."""

    @magic_arguments()
    @argument(
        "words", nargs="*", help="how many engines (4, or 2:4); or status, restart, stop, detach"
    )
    @argument("--gpus", help="which GPUs in rank order, such as 1,3 or 0-3; free ones by default")
    @argument("--per-gpu", type=int, default=1, help="engines that share each GPU")
    @argument("--gpus-per-engine", type=int, default=1, help="GPUs that each engine gets")
    @argument("--name", help="tells pools of this notebook apart")
    @argument(
        "--idle", type=float, metavar="MIN", help="minutes without use until it ends; 0 for never"
    )
    @argument(
        "--wait",
        nargs="?",
        metavar="MIN",
        const=True,
        default=False,
        help="wait for GPUs, at most MIN minutes",
    )
    @argument("--share", action="store_true", help="use GPUs that others use as well")
    @argument("--visible", choices=("own", "pool"), default="own", help="GPUs an engine sees")
    @argument("--restart", action="store_true", help="end an open pool first, with its variables")
    @argument("--keep", action="store_true", help="outlives the kernel; needs a --name")
    @argument("--attach", metavar="NAME", help="brings a kept pool into this notebook")
    @argument("--cluster", metavar="NAME", help="where the engines run: see docs/clusters.md")
    @argument("--profile", metavar="NAME", help="an ipyparallel profile that says where")
    @line_magic
    def parpool(self, line: str) -> Any:
        """Start a pool (`%parpool 2 --gpus 1,3`), or show the open one (`%parpool`)."""
        args = parse_argstring(self.parpool, line)
        words = list(args.words)
        try:
            if words and words[0] in COMMANDS:
                return self._command(words[0], words[1:], args.name)
            if len(words) > 1:
                raise UsageError(f"%parpool takes one number or one of {COMMANDS}, not {words}.")
            if not shlex.split(line) and current_pool() is not None:
                return current_pool()
            return self._start(words[0] if words else None, args)
        except (MgpuError, ValueError) as error:
            raise UsageError(str(error)) from error  # one line in the notebook, no traceback

    def _start(self, size: str | None, args: Any) -> Pool:
        return parpool(
            parse_size(size) if size else None,
            gpus=args.gpus,
            per_gpu=args.per_gpu,
            gpus_per_engine=args.gpus_per_engine,
            name=args.name,
            idle_timeout=IDLE_TIMEOUT_S if args.idle is None else args.idle * 60,
            wait=args.wait if isinstance(args.wait, bool) else float(args.wait) * 60,
            share=args.share,
            visible=args.visible,
            restart=args.restart,
            keep=args.keep,
            attach=args.attach,
            cluster=args.cluster,
            profile=args.profile,
        )

    def _command(self, command: str, rest: list[str], name: str | None) -> Any:
        if command == "stop" and name is not None and find_pool(name) is None:
            found = kept_pool(name)
            if found is not None:  # also one that another kernel has, as from the command line
                return _say(control.stop(found).words)
        if name is None and current_pool() is None:
            return _say("No pool is open. Start one with %parpool.")
        if rest and command != "restart":
            raise UsageError(
                f"%parpool {command} was given {' '.join(rest)!r}, but takes no more words. "
                "Another pool than the current one is named by --name NAME."
            )
        pool = pool_named(name)
        if command == "status":
            return pool
        if command == "restart":
            ranks = parse_ranks(",".join(rest)) if rest else pool.ranks
            pool.restart(ranks)
            return _say(f"New engines start on {ranks_text(ranks)} of the pool {pool.name!r}.")
        if command == "detach":
            pool.detach()
            return _say(f"The pool {pool.name!r} goes on without this kernel.")
        pending = pool.tasks()
        pool.shutdown(wait_for_tasks=False)
        tasks = "1 task was" if len(pending) == 1 else f"{len(pending)} tasks were"
        tail = f"; {tasks} cancelled" if pending else ""
        return _say(f"The pool {pool.name!r} was stopped{tail}.")


def _say(text: str) -> None:
    from jupyter_mgpu.output import notices

    notices.say(text)
