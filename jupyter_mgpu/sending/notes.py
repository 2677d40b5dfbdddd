"""The dim lines that say what was sent."""

from collections.abc import Iterable

from jupyter_mgpu.output.table import format_bytes


def format_ranks(ranks: Iterable[int]) -> str:
    """Write ranks: rank 0, ranks 0-1, ranks 0, 2-3."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    spans = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(spans)}"


def sent_line(sizes: dict[str, int | None], ranks: Iterable[int]) -> str:
    """Say what was sent to whom.

    Args:
        sizes: Bytes by name; None for code, whose size says nothing.
        ranks: The ranks it was sent to.
    """
    parts = (
        name if size is None else f"{name} ({format_bytes(size)})" for name, size in sizes.items()
    )
    return f"sent {', '.join(parts)} to {format_ranks(ranks)}"
