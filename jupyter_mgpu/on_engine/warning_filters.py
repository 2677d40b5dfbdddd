"""Gives an engine the kernel's warning filters, which travel as plain values."""

import functools
import json
import re
import sys
import warnings
from types import ModuleType
from typing import Any

from jupyter_mgpu.on_engine import imports

VARIABLE = "MGPU_WARNINGS"


def describe() -> str:
    """Describe this process's warning filters."""
    filters = []
    for action, message, category, module, line in warnings.filters:
        patterns = [p.pattern if isinstance(p, re.Pattern) else p for p in (message, module)]
        kind = f"{category.__module__}:{category.__name__}"  # type: ignore[union-attr] # one class
        filters.append([action, patterns[0], kind, patterns[1], line])
    return json.dumps(filters)


def apply(text: str) -> None:
    """Take over described filters; those of a library's categories once it has been imported.

    torch and numpy filter warnings of their own: no engine may import torch for that.
    """
    later: dict[str, list[Any]] = {}
    filters: list[Any] = []
    for described in json.loads(text):
        home = described[2].partition(":")[0]
        if home in sys.modules:
            filters += _filters(described, sys.modules[home])
        else:
            later.setdefault(home, []).append(described)
    _set(filters)
    for home, waiting in later.items():
        imports.after_import(home, functools.partial(_put_first, waiting))


def _put_first(waiting: list[Any], module: ModuleType) -> None:
    added = [item for described in waiting for item in _filters(described, module)]
    _set([*added, *(item for item in warnings.filters if item not in added)])


def _set(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index] # a list, whatever the stub says
    warnings._filters_mutated()  # type: ignore[attr-defined] # noqa: SLF001 - resets the caches


def _filters(described: Any, module: ModuleType) -> list[Any]:
    """Make a described filter, if its category is one of the module's."""
    action, message, kind, source, line = described
    category = getattr(module, kind.partition(":")[2], None)
    if not (isinstance(category, type) and issubclass(category, Warning)):
        return []
    return [(action, _compiled(message), category, _compiled(source), line)]


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    return re.compile(pattern, re.IGNORECASE) if pattern else None
