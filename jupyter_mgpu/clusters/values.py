"""Reads one value of a clusters file, or says what is allowed there."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jupyter_mgpu.devices import parse_gpus
from jupyter_mgpu.errors import ClusterError, SelectionError

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table stands, for messages.

    Attributes:
        file: The file it was read from.
        path: The keys that lead to it, as TOML writes them.
    """

    file: str
    path: str

    def within(self, key: str) -> "Place":
        """Return the place of a key in this table."""
        return Place(self.file, f"{self.path}.{key}" if self.path else key)

    def refuse(self, written: Any, allowed: str, choices: Iterable[str] = ()) -> NoReturn:
        """Say what was written here and what may be.

        Args:
            written: The value.
            allowed: What is true, or allowed, as half a sentence.
            choices: The words that may be meant.

        Raises:
            ClusterError: Always.
        """
        meant = close_match(written, choices) if isinstance(written, str) else ""
        raise ClusterError(f"{self.file}: {self.path} = {shown(written)}, but {allowed}.{meant}")


Reader = Callable[[Place, Any], Any]


def shown(value: Any) -> str:
    """Write a value as TOML does, as far as messages need it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {shown(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def close_match(word: str, words: Iterable[str]) -> str:
    """Suggest the word that was meant, with a space before; empty if none is close."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def read_table(place: Place, table: Any, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Read a table whose keys are known.

    Args:
        place: Where it stands.
        table: What was written there.
        readers: How the value of each allowed key is read.

    Raises:
        ClusterError: For an unknown key or a value that is not allowed.
    """
    if not isinstance(table, dict):
        place.refuse(table, "a table is needed")
    for key in table:
        if key not in readers:
            raise ClusterError(
                f"{place.file}: {place.within(key).path} = {shown(table[key])} was written, but "
                f"{place.path or 'the file'} may have only: {', '.join(sorted(readers))}."
                + close_match(key, readers)
            )
    return {key: readers[key](place.within(key), value) for key, value in table.items()}


def text(place: Place, value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        place.refuse(value, 'a text in quotes is needed, such as "gpu"')
    return value


def word(place: Place, value: Any) -> str:
    """Read a text of one line without spaces at its ends, which becomes a part of a command.

    A leading dash would make ssh and Slurm take it for an option.
    """
    given = text(place, value)
    if given != given.strip() or given.startswith("-") or not given.isprintable():
        place.refuse(value, "a name is needed, on one line and not beginning with a dash")
    return given


def texts(place: Place, value: Any) -> tuple[str, ...]:
    """Read a list of texts of one line each."""
    if not isinstance(value, list):
        place.refuse(value, 'a list of texts is needed, such as ["--exclusive"]')
    for each in value:
        if not isinstance(each, str) or not each.strip() or not each.isprintable():
            place.refuse(value, f"{shown(each)} in it is not a text of one line")
    return tuple(value)


def flag(place: Place, value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        place.refuse(value, "true or false is needed")
    return value


def count(place: Place, value: Any) -> int:
    """Read a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        place.refuse(value, "a whole number above 0 is needed")
    return value


def port(place: Place, value: Any) -> int:
    """Read a port number."""
    if count(place, value) > _HIGHEST_PORT:
        place.refuse(value, f"ports go up to {_HIGHEST_PORT}")
    return int(value)


def seconds(place: Place, value: Any) -> float:
    """Read a number of seconds above 0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < float("inf")
    ):
        place.refuse(value, "a number of seconds above 0 is needed")
    return float(value)


def gpus(place: Place, value: Any) -> str:
    """Read GPU numbers or UUIDs; "none" stands for CPU engines."""
    given = text(place, value) if isinstance(value, str) else ""
    if given == "none":
        return given
    try:
        numbers = parse_gpus(given)
    except SelectionError:
        numbers = []
    if not numbers or len(set(numbers)) < len(numbers):
        place.refuse(
            value,
            'numbers are needed, each once, such as "1,3" or "0-3", or UUIDs; or "none" for '
            "CPU engines",
        )
    return given


def variables(place: Place, value: Any) -> dict[str, str]:
    """Read environment variables."""
    if not isinstance(value, dict):
        place.refuse(value, 'a table is needed, such as { NCCL_DEBUG = "INFO" }')
    for name, given in value.items():
        if not _VARIABLE.fullmatch(name):
            place.within(name).refuse(given, "names of variables have letters, digits and _ only")
        if not isinstance(given, str) or "\0" in given:
            place.within(name).refuse(given, "values of variables are texts: put it in quotes")
    return dict(value)


def settings(place: Place, value: Any) -> dict[str, Any]:
    """Read the settings of a launcher, which checks them itself."""
    if not isinstance(value, dict):
        place.refuse(value, 'a table is needed, such as { queue = "gpu" }')
    return dict(value)


def one_of(*allowed: str) -> Reader:
    """Make the reader of a choice."""

    def read(place: Place, value: Any) -> str:
        if value not in allowed:
            words = ", ".join(f'"{each}"' for each in allowed)
            place.refuse(value, f"one of {words} is needed", allowed)
        return str(value)

    return read
