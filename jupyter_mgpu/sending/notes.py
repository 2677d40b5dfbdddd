"""The dim lines that say what was sent."""

from collections.abc import Iterable

_THOUSAND = 1000


def format_bytes(num_bytes: int) -> str:
    """Write a size: 24 B, 1.2 MB."""
    if num_bytes < _THOUSAND:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= _THOUSAND
        if size < _THOUSAND:
            return f"{size:.1f} {unit}" if size < 10 else f"{size:.0f} {unit}"
    return f"{size / _THOUSAND:.1f} TB"


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
