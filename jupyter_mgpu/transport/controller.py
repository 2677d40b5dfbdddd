"""Connects ipyparallel's own client to a controller that another process has started."""

import contextlib
from pathlib import Path
from typing import Any

JOIN_S = 5.0


def connect_client(folder: Path, num_engines: int) -> Any:
    """Connect to the controller of a pool, for `pool.client` and `%%px`.

    Args:
        folder: The pool's private folder.
        num_engines: How many engines will join soon; it waits for them.
    """
    import ipyparallel as ipp

    (file,) = (folder / "profile" / "security").glob("ipcontroller-*-client.json")
    client = ipp.Client(str(file))
    with contextlib.suppress(TimeoutError):  # it began a task, and joins when that has ended
        client.wait_for_engines(num_engines, timeout=JOIN_S, interactive=False)
    return client
