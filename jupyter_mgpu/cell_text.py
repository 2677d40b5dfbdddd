"""The text of a cell that starts with a magic."""

from collections.abc import Callable


def below_magic(
    body: str, transform: Callable[[str], str] | None = None, first_line: str = ""
) -> str:
    """Turn a cell without its magic's line into Python, each line where the notebook has it.

    Args:
        body: The cell without its first line.
        transform: Turns magics and shell lines into Python, as IPython's `transform_cell`.
        first_line: Stands where the magic's line was.
    """
    # IPython drops the empty lines at a cell's start.
    num_empty = body[: len(body) - len(body.lstrip())].count("\n") if transform else 0
    return first_line + "\n" * (1 + num_empty) + (transform(body) if transform else body)
