"""Execute a notebook in a real kernel and show what its reader would see.

usage: python scripts/demo.py NOTEBOOK FOLDER
"""

import argparse
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter

CELL_TIMEOUT_S = 180
MAX_LINES = 12


class Progress:
    """Prints one line per code cell, then what the cell printed."""

    def __init__(self, num_cells: int) -> None:
        self._num_cells = num_cells
        self._done = 0
        self._start_s = 0.0

    def on_start(self, cell: Any, cell_index: int) -> None:
        """Note when a cell starts."""
        del cell, cell_index
        self._start_s = time.monotonic()

    def on_executed(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        """Show a cell that has ended."""
        del cell_index, execute_reply
        if cell.cell_type != "code":
            return
        self._done += 1
        lines = [line for line in cell.source.splitlines() if line.strip()]
        elapsed_s = time.monotonic() - self._start_s
        print(f"[{self._done:2}/{self._num_cells}] {elapsed_s:5.1f} s  {lines[0]}", flush=True)
        for text in map(shown_text, cell.outputs):
            if text:
                print(textwrap.indent(shorten(text), " " * 17 + "| "), flush=True)


def shown_text(output: Any) -> str:
    """Return the text of one output of a cell, figures by name."""
    if output.output_type == "stream":
        return "" if output.name == "stderr" else output.text
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}"
    if "image/png" in output.data:
        return "[figure]"
    return output.data.get("text/plain", "")


def shorten(text: str) -> str:
    """Keep the first lines of a long output."""
    lines = text.rstrip().splitlines()
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"... {len(lines) - MAX_LINES} more lines"]
    return "\n".join(lines)


def execute(notebook: Path, folder: Path) -> bool:
    """Execute a notebook; write it and its HTML into a folder.

    Returns:
        Whether every cell ran without an error.
    """
    node = nbformat.read(notebook, as_version=4)
    progress = Progress(sum(cell.cell_type == "code" for cell in node.cells))
    client = NotebookClient(
        node,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(notebook.parent)}},
        on_cell_start=progress.on_start,
        on_cell_executed=progress.on_executed,
    )
    start_s = time.monotonic()
    try:
        client.execute()
        is_complete = True
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        print(f"\n{error}", file=sys.stderr)
        is_complete = False
    elapsed_s = time.monotonic() - start_s

    folder.mkdir(parents=True, exist_ok=True)
    executed = folder / notebook.name
    nbformat.write(node, executed)
    page = executed.with_suffix(".html")
    page.write_text(HTMLExporter().from_notebook_node(node)[0], encoding="utf-8")
    print(f"\n{'Executed' if is_complete else 'Stopped'} after {elapsed_s:.0f} s.")
    print(f"notebook: {executed.resolve()}\nas HTML:  {page.resolve()}")
    return is_complete


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    return 0 if execute(arguments.notebook, arguments.folder) else 1


if __name__ == "__main__":
    sys.exit(main())
