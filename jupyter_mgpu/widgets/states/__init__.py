"""What each kind of view draws, as JSON, made from records and bounded in size.

pool, gpus, tasks, training, compare    one kind each
parts                                   readings, series, times
"""

from typing import Any

State = dict[str, Any]
"""JSON values by name; None where something is unknown, with the reason in words beside it."""
