"""What an export asks of a trainer's format, and what it gives to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hslib.export.draft_vocabulary import VocabularyMap
from hslib.model import FinalNorm, Side
from hslib.store import Manifest, Store, StoredSample, Tokens

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Row:
    """One finished row: a line of ``export.jsonl``."""

    row: int
    index: int  # the sample's, in the store
    source: str  # the stored sample's checksum
    file: str  # below the export
    size_bytes: int


@dataclass(frozen=True)
class Bridge:
    """Carries the stored final state to the side of the norm that the trainer reads."""

    stored: Side
    wanted: Side
    norm: FinalNorm | None  # None where both sides are the same

    def final(self, stored: "torch.Tensor") -> "torch.Tensor":
        """bf16 [T, H], from the stored side to the wanted one.

        Raises:
            ExportError: this norm can't have made these states.
        """
        if self.norm is None:
            return stored
        return self.norm.unnormed(stored) if self.wanted == "pre" else self.norm.normed(stored)


@dataclass(frozen=True)
class Context:
    """A finished export's rows, of which a trainer's other files are made."""

    store: Store
    out: Path
    model_path: Path
    rows: tuple[Row, ...]
    longest: int  # tokens
    vocabulary: VocabularyMap | None  # None = the model's whole vocabulary
    token_counts: dict[int, int]

    def tokens(self) -> Iterator[Tokens]:
        """Ids and mask of each row, in row order."""
        return self.store.tokens(row.index for row in self.rows)


class TrainerFormat(Protocol):
    """One trainer's files; a new trainer implements this and joins ``hslib.export.TRAINERS``."""

    name: str
    final_side: Side

    def check(self, manifest: Manifest, model_type: str) -> None:
        """Raises :class:`ExportError` when this trainer would read such a store wrongly."""

    def file(self, row: int) -> str:
        """Where a row lies below the export."""

    def parts(self, sample: StoredSample, bridge: Bridge) -> Iterator[bytes | memoryview]:
        """The bytes of a row's file."""

    def train_command(self, out: Path) -> str:
        """What trains on the finished export, in a terminal."""

    def finish(self, context: Context) -> None:
        """Write the files that all rows share: tables, vocabulary maps, a config to start from."""
