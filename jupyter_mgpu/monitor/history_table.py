"""The history as a table: one row per sample, one column per number."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """The last minutes of every number.

    Attributes:
        columns: "at" (epoch seconds), then names such as "GPU 0 power_watts".
        rows: One per sample, oldest first; None where there was no reading.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[float | None, ...], ...]

    def __repr__(self) -> str:
        return f"{len(self.rows)} samples of {len(self.columns) - 1} numbers"

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return the values of each column."""
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in self.columns)
        return {name: list(values) for name, values in zip(self.columns, columns, strict=True)}

    def to_pandas(self) -> Any:
        """Make a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(self.columns), dtype=float)

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the table as CSV, and write it to a file if one is named."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.columns, *self.rows])
        return write(text.getvalue(), path)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return `to_dict` as JSON, and write it to a file if one is named."""
        return write(json.dumps(self.to_dict()), path)


def write(text: str, path: str | Path | None) -> str:
    """Write a text to a file if one is named, and return it."""
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
