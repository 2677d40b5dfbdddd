"""Which options a strategy refuses, and why; known before anything runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rule = tuple[Callable[[Any], bool], str]
"""Tells whether options break it; and the reason, to which "strategy is ..., but" leads."""

RULES: Mapping[str, Sequence[Rule]] = {
    "ddp": (),
}
UNBUILT = ("fsdp", "pipeline")


def check(options: Any) -> None:
    """Refuse options that do not fit the strategy.

    Raises:
        ValueError: It says what was asked, why it cannot be, and what to do.
    """
    name = options.strategy
    if name in UNBUILT:
        raise ValueError(
            f"strategy is {name!r}, but it is not built yet. With 'ddp' every rank "
            "holds the whole network."
        )
    if name not in RULES:
        raise ValueError(f"strategy is {name!r}, but it may be: {', '.join(map(repr, RULES))}.")
    for is_broken, reason in RULES[name]:
        if is_broken(options):
            raise ValueError(f"strategy is {name!r}, but {reason}")
