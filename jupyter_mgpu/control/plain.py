"""Values as JSON knows them, strictly: browsers refuse NaN."""

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a value in JSON's own types; numbers that are not finite become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    return value if isinstance(value, int | float | str | None) else str(value)
