"""What an export tells of itself, for a table."""

from dataclasses import dataclass
from pathlib import Path

from hslib.export.drafters import Dtype
from hslib.export.reading import Reading


@dataclass(frozen=True)
class ExportReport:
    """A finished export."""

    trainer: str
    drafter: str
    dtype: Dtype
    path: Path
    model_path: Path
    reading: Reading
    rows: int
    made: int  # in this run; the others were there
    left_out: int  # stored samples that this drafter can't train on
    size_bytes: int
    coverage: float | None
    fp8_errors: dict[str, float]  # relative, by state; of the first rows
    witness: str
    encoding: str
    train_command: str
    notes: tuple[str, ...] = ()  # what would be in the way of training

    @property
    def boundaries(self) -> tuple[int, ...]:
        return self.reading.boundaries

    @property
    def bridge(self) -> str:
        """Where the last state is from, in words."""
        return self.reading.bridge.sentence() if self.reading.bridge else "not read"

    def facts(self) -> dict[str, str]:
        """For a table."""
        whole = "all tokens" if self.coverage is None else f"{self.coverage:.1%} of trained tokens"
        left_out = {"left out": f"{self.left_out:,} without two trained tokens in a row"}
        errors = self.fp8_errors
        return {
            "trainer": f"{self.trainer}, {self.drafter}",
            "rows": f"{self.rows:,} ({self.made:,} made now)",
            **(left_out if self.left_out else {}),
            "size": f"{self.size_bytes / 1e6:,.1f} MB",
            "aux boundaries": ", ".join(map(str, self.boundaries)) or "none",
            "final state": self.bridge,
            **({"fp8, relative error": errors_sentence(errors)} if errors else {}),
            "states": self.witness,
            "stored as": self.encoding,
            "draft vocabulary": whole,
            **({"before training": "; ".join(self.notes)} if self.notes else {}),
        }


def errors_sentence(errors: dict[str, float]) -> str:
    """``"boundary 3: 2.6 %, last: 2.5 %"``"""
    return ", ".join(f"{state}: {error:.1%}" for state, error in errors.items())
