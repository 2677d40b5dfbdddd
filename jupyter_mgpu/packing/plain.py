"""Unpacks plain data, in a thread where no code of users may run."""

import io
import pickle
from collections.abc import Sequence
from typing import Any, NoReturn

LARGEST_BYTES = 64 * 1024


class NotPlainError(Exception):
    """The object is more than numbers, texts and containers, or large."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse: whatever is not built in could run code."""
        raise NotPlainError(f"{module}.{name}")


def unpack_plain(frames: Sequence[Any]) -> Any:
    """Rebuild numbers, texts, bytes and built-in containers of them.

    Raises:
        NotPlainError: If it is anything else, or larger than LARGEST_BYTES.
    """
    if len(frames) != 1 or len(frames[0]) > LARGEST_BYTES:
        raise NotPlainError
    try:
        return _PlainUnpickler(io.BytesIO(frames[0])).load()
    except NotPlainError:
        raise
    except Exception as error:
        raise NotPlainError from error
