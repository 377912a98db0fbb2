"""What an export asks of a trainer's format, and what it gives to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hslib.export.draft_vocabulary import VocabularyMap
from hslib.export.drafters import Drafter, Dtype
from hslib.export.reading import Reading
from hslib.store import Store, StoredSample, Tokens


@dataclass(frozen=True)
class ExportedRow:
    """One finished row: a line of ``export.jsonl``."""

    row: int
    index: int  # the sample's, in the store
    source: str  # the stored sample's checksum
    file: str  # below the export
    size_bytes: int


@dataclass(frozen=True)
class Context:
    """A finished export's rows, of which a trainer's other files are made."""

    store: Store
    out: Path
    model_path: Path
    reading: Reading
    rows: tuple[ExportedRow, ...]
    longest: int  # tokens
    vocabulary: VocabularyMap | None  # None = the model's whole vocabulary
    token_counts: dict[int, int]

    def tokens(self) -> Iterator[Tokens]:
        """Ids and mask of each row, in row order."""
        return self.store.tokens(row.index for row in self.rows)


class TrainerFormat(Protocol):
    """One trainer's files; a new trainer implements this and joins ``hslib.export.TRAINERS``.

    Raises:
        ExportError: on construction: it has no such drafter, or can't read it from files so.
    """

    drafter: Drafter
    dtype: Dtype

    def __init__(self, drafter: str = "eagle3", dtype: Dtype = "bf16") -> None: ...

    def check(self, model_type: str, model_path: Path) -> None:
        """Raises :class:`ExportError` when this drafter would read the model's states wrongly."""

    def file(self, row: int) -> str:
        """Where a row lies below the export."""

    def parts(self, sample: StoredSample, reading: Reading) -> Iterator[bytes | memoryview]:
        """The bytes of a row's file."""

    def notes(self, model_path: Path) -> tuple[str, ...]:
        """What would be in the way of training, with its cure; a sentence each."""

    def train_command(self, out: Path) -> str:
        """What trains on the finished export, in a terminal."""

    def finish(self, context: Context) -> None:
        """Write the files that all rows share: tables, vocabulary maps, a config to start from."""
