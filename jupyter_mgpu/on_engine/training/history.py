"""What a training measured on its way."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class History:
    """The course of one training.

    Attributes:
        steps: One dict per step: `step`, `epoch`, `rate`, `loss` and the metrics.
        validations: One dict per validation: `step`, `epoch`, `validation_loss`, ...
        stopped: Why it ended, in words.
        environment: What it ran on, in words.
        seconds: How long it took.
        exchange: By what the ranks exchanged, such as "gloo over lo"; empty on one device.
        exchange_share: How much of that went into the exchange between ranks, waiting for slower
            ones included; 0 on one device. With "fsdp" on GPUs only that of losses.
        notes: How the options were read.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    validations: list[dict[str, Any]] = field(default_factory=list)
    stopped: str = ""
    environment: str = ""
    seconds: float = 0.0
    exchange: str = ""
    exchange_share: float = 0.0
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[float]:
        """Return one curve, such as `history["loss"]`.

        Raises:
            KeyError: If nothing of that name was measured.
        """
        for rows in (self.steps, self.validations):
            if rows and name in rows[0]:
                return [row[name] for row in rows if name in row]
        known = sorted({key for row in (*self.steps[:1], *self.validations[:1]) for key in row})
        raise KeyError(
            f"{name!r} was asked for, but measured were: {', '.join(known) or 'nothing'}."
        )

    def to_frame(self) -> Any:
        """Return the steps as a pandas DataFrame, with the validations joined by step."""
        import pandas as pd

        frame = pd.DataFrame(self.steps)
        if self.validations:
            found = pd.DataFrame(self.validations).drop(columns="epoch")
            frame = frame.merge(found, on="step", how="left")
        return frame

    def __repr__(self) -> str:
        last = self.steps[-1] if self.steps else {}
        values = ", ".join(
            f"{key}={value:.4g}"
            for key, value in {**last, **(self.validations[-1] if self.validations else {})}.items()
            if key not in ("step", "epoch")
        )
        return (
            f"<History: {len(self.steps)} steps in {self.seconds:.1f} s on {self.environment}; "
            f"{values}; {self.stopped}>"
        )
