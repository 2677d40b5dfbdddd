"""Gives an engine the kernel's warning filters, which travel as plain values."""

import importlib
import json
import re
import warnings
from typing import Any

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
    """Take over described filters; those of categories that cannot be imported are left out."""
    filters: list[Any] = []
    for action, message, kind, module, line in json.loads(text):
        category = _category(kind)
        if category is not None:
            filters.append((action, _compiled(message), category, _compiled(module), line))
    warnings.filters[:] = filters  # type: ignore[index] # a list, whatever the stub says
    warnings._filters_mutated()  # type: ignore[attr-defined] # noqa: SLF001 - resets the caches


def _category(kind: str) -> type[Warning] | None:
    module, _, name = kind.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) and issubclass(found, Warning) else None


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    return re.compile(pattern, re.IGNORECASE) if pattern else None
