"""What a check found, and how a list of them is shown."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Attributes:
        finding: What is true, with the values.
        next_step: What to do; None if there is nothing to do.
    """

    name: str
    outcome: Outcome
    finding: str
    next_step: str | None = None

    def __str__(self) -> str:
        step = f" {self.next_step}" if self.next_step else ""
        return f"{self.outcome.value:8}{self.name}: {self.finding}{step}"


def passed(name: str, finding: str) -> Check:
    """Say that all is well."""
    return Check(name, Outcome.PASSED, finding)


def failed(name: str, finding: str, next_step: str) -> Check:
    """Say that something will trouble the user, and what to do."""
    return Check(name, Outcome.FAILED, finding, next_step)


def skipped(name: str, finding: str, next_step: str | None = None) -> Check:
    """Say why it could not be looked at."""
    return Check(name, Outcome.SKIPPED, finding, next_step)


@dataclass(frozen=True, slots=True)
class Report(Sequence[Check]):
    """Every check of one visit to the doctor."""

    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that ask for something to be done."""
        return tuple(check for check in self.checks if check.outcome is Outcome.FAILED)

    def __len__(self) -> int:
        return len(self.checks)

    @overload
    def __getitem__(self, place: int) -> Check: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Check, ...]: ...
    def __getitem__(self, place: int | slice) -> Check | tuple[Check, ...]:
        return self.checks[place]

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __repr__(self) -> str:
        return "\n".join([*map(str, self.checks), self._summary()])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{check.outcome.value}</td><td>{html.escape(check.name)}</td>"
            f'<td style="text-align:left;white-space:pre-wrap">{html.escape(check.finding)}</td>'
            f'<td style="text-align:left">{html.escape(check.next_step or "")}</td></tr>'
            for check in self.checks
        )
        head = "".join(f"<th>{word}</th>" for word in ("", "check", "finding", "next step"))
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{html.escape(self._summary())}</p>"
        )

    def _summary(self) -> str:
        counts = [sum(c.outcome is outcome for c in self.checks) for outcome in Outcome]
        words = (f"{n} {outcome.value}" for n, outcome in zip(counts, Outcome, strict=True))
        return ", ".join(words) + "."
