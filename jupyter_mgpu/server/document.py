"""What all clients see: sections of flat rows, and what has changed since any earlier state."""

import json
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
Rows = Mapping[str, Row]

MOST_GONE = 1000


class Document:
    """Rows by section and id. Each field remembers the state in which it changed last.

    So a client that missed some states gets exactly what differs for it, and states need not be
    kept. A field's value is replaced whole; None in it means unknown.

    Attributes:
        seq: The number of the present state.
    """

    def __init__(self) -> None:
        self.seq = 0
        self._rows: dict[str, dict[str, dict[str, Any]]] = {}
        self._field_seqs: dict[tuple[str, str], dict[str, int]] = {}
        self._row_seqs: dict[tuple[str, str], int] = {}
        self._gone: dict[tuple[str, str], int] = {}
        self._oldest = 0  # of what has gone before this state is not known any more

    def replace(self, section: str, rows: Rows) -> None:
        """Take the rows of a section; they belong to the state that `commit` makes."""
        present = self._rows.setdefault(section, {})
        for row_id in [row_id for row_id in present if row_id not in rows]:
            self._drop(section, row_id)
        for row_id, row in rows.items():
            self._take(section, row_id, row)

    def commit(self) -> int:
        """Make a new state of what was taken, and return its number."""
        self.seq += 1
        return self.seq

    def _take(self, section: str, row_id: str, row: Row) -> None:
        key, coming = (section, row_id), self.seq + 1
        present = self._rows[section].setdefault(row_id, {})
        seqs = self._field_seqs.setdefault(key, {})
        for field, value in row.items():
            if field not in seqs or present[field] != value:
                present[field] = value
                seqs[field] = self._row_seqs[key] = coming
        self._gone.pop(key, None)

    def _drop(self, section: str, row_id: str) -> None:
        key = (section, row_id)
        del self._rows[section][row_id]
        self._field_seqs.pop(key, None)
        self._row_seqs.pop(key, None)
        self._gone[key] = self.seq + 1
        if len(self._gone) > MOST_GONE:
            oldest = next(iter(self._gone))
            self._oldest = max(self._oldest, self._gone.pop(oldest))

    def sections(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return all rows."""
        return self._rows

    def since(self, seq: int) -> dict[str, Any] | None:
        """Return what differs from an earlier state, None where that is not known any more.

        Returns:
            `changed`, with the new values of fields by section and row, and `gone`, with the ids
            of rows by section; each only if there are some.
        """
        if seq < self._oldest or seq > self.seq:
            return None
        changed: dict[str, dict[str, dict[str, Any]]] = {}
        for (section, row_id), row_seq in self._row_seqs.items():
            if row_seq > seq:
                row = self._rows[section][row_id]
                seqs = self._field_seqs[section, row_id]
                fields = {field: row[field] for field, own in seqs.items() if own > seq}
                changed.setdefault(section, {})[row_id] = fields
        gone: dict[str, list[str]] = {}
        for (section, row_id), row_seq in self._gone.items():
            if row_seq > seq:
                gone.setdefault(section, []).append(row_id)
        parts = {"changed": changed, "gone": gone}
        return {name: part for name, part in parts.items() if part}


def dump(message: Mapping[str, Any]) -> str:
    """Write a message as compact JSON."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False)
