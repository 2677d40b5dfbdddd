"""Parses the command line, calls the library, writes what came of it."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from jupyter_mgpu.cli import cluster, shown
from jupyter_mgpu.cli.shown import Outcome
from jupyter_mgpu.control import plain
from jupyter_mgpu.errors import MgpuError

FAILED = 1
CLOSED_PIPE, INTERRUPTED = 141, 130
"""As a shell tells of a program that SIGPIPE or SIGINT has ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0 if it was done, 1 if it was refused, failed, or the doctor has found something; argparse
        itself exits with 2 where the line makes no sense.
    """
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], Outcome] = options.command
    try:
        outcome = command(options)
    except (MgpuError, OSError) as error:
        outcome = Outcome({"error": str(error)}, str(error), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        _write(outcome, as_json=options.json)
    except BrokenPipeError:
        # The interpreter would say it once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return outcome.exit_code


def _write(outcome: Outcome, *, as_json: bool) -> None:
    is_error = outcome.exit_code and "error" in outcome.value
    if as_json:
        sys.stdout.write(json.dumps(plain(outcome.value), indent=2) + "\n")
    else:
        (sys.stderr if is_error else sys.stdout).write(outcome.text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jupyter mgpu", description="GPUs, pools and tasks of your Jupyter kernels."
    )
    parser.add_argument("--version", action="version", version=version("jupyter_mgpu"))
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(
        name: str, command: Callable[[argparse.Namespace], Outcome], words: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=words, description=words)
        added.set_defaults(command=command)
        added.add_argument("--json", action="store_true", help="write JSON")
        return added

    add(
        "gpus",
        lambda _: shown.gpus(),
        "List the GPUs of this machine, and of the hosts of your pools, with who uses them.",
    )
    add("pools", lambda _: shown.pools(), "List your pools, in whichever kernel they are.")
    tasks = add("tasks", lambda given: shown.tasks(given.name), "List the tasks of your pools.")
    tasks.add_argument("name", nargs="?", help="show what this task has printed")
    stop = add(
        "stop", lambda given: shown.stop(given.name), "Stop a pool, or clean up an orphaned one."
    )
    stop.add_argument("name", help="the pool's name or id")
    add("doctor", lambda _: shown.doctor(), "Check what a pool needs, and say what to do.")
    cluster.add_to(commands)
    return parser
