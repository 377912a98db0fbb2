"""A line per answered conversation; the line is the commit, and a rerun asks what has none."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import orjson
import pydantic

from hslib.dataset import Rejection
from hslib.errors import JobError
from hslib.files import AppendFile, explained


class AnsweredRow(pydantic.BaseModel, frozen=True):
    """``input_ids`` [T], ``loss_mask`` [T]: 1 on what the model generated."""

    input_ids: list[int]
    loss_mask: list[int]
    last_answer: int  # tokens of the last answer
    stop_reasons: list[str]  # of each answer: stop, or length where it was cut


class Outcome(pydantic.BaseModel, frozen=True):
    """What one conversation gave, the ``sample``-th time it was answered."""

    index: int
    sample: int
    digest: str  # of the conversation as it was read
    id: str
    rows: list[AnsweredRow]
    reason: str = ""  # why not every turn is answered, as a code
    detail: str = ""
    fix: str = ""

    @classmethod
    def rejected(cls, row: Rejection, digest: str) -> "Outcome":
        """A conversation that can't be asked."""
        evidence = {
            name: value.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair
            for name, value in (("reason", row.reason), ("detail", row.detail), ("fix", row.fix))
        }
        return cls(index=row.index, sample=0, digest=digest, id=row.id, rows=[], **evidence)


class AnswerJournal(AbstractContextManager["AnswerJournal"]):
    """The outcomes in a file; its first line says what they were made with.

    Raises:
        JobError: it was begun with something else.
    """

    def __init__(self, path: Path, made_with: bytes) -> None:
        self.path = path
        self._made_with = made_with
        self._offsets: dict[tuple[int, int], int] = {}
        self._digests: dict[int, str] = {}

    def __enter__(self) -> "AnswerJournal":
        with explained(JobError, "the answers' journal can't be opened", self.path):
            self._file = AppendFile(self.path)
            try:
                self._read()
            except BaseException:
                self._file.close()
                raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    @property
    def begun_with(self) -> bytes:
        """The first line."""
        with self.path.open("rb") as file:
            return file.readline()

    def __len__(self) -> int:
        return len(self._offsets)

    def has(self, index: int, sample: int, digest: str) -> bool:
        """Whether this conversation is answered.

        Raises:
            JobError: another conversation stood there when it was.
        """
        if self._digests.get(index, digest) != digest:
            raise JobError(
                f"row {index} is no longer the conversation that was answered",
                path=str(self.path),
                fix="give the source that this was begun with, or another output",
            )
        return (index, sample) in self._offsets

    def require_no_more_than(self, count: int) -> None:
        """Raises :class:`JobError` when conversations were answered that the source lacks now."""
        highest = max(self._digests, default=-1)
        if highest >= count:
            raise JobError(
                f"row {highest} was answered, the source has only {count} rows now",
                path=str(self.path),
                fix="give the source that this was begun with, or another output",
            )

    def record(self, outcome: Outcome) -> None:
        """Durable when it returns."""
        offset = self.path.stat().st_size
        with explained(JobError, "the answers' journal can't be written", self.path):
            self._file.append([outcome.model_dump_json().encode() + b"\n"])
        self._note(offset, outcome.index, outcome.sample, outcome.digest)

    def outcomes(self) -> Iterator[Outcome]:
        """By index and sample, one in memory at a time."""
        with self.path.open("rb") as file:
            for _, offset in sorted(self._offsets.items()):
                file.seek(offset)
                yield Outcome.model_validate_json(file.readline())

    def _read(self) -> None:
        if not self.path.stat().st_size:
            self._file.append([self._made_with + b"\n"])
        with self.path.open("rb") as file:
            offset = len(file.readline())
            for line in file:
                head = orjson.loads(line)
                self._note(offset, head["index"], head["sample"], head["digest"])
                offset += len(line)

    def _note(self, offset: int, index: int, sample: int, digest: str) -> None:
        self._offsets[index, sample] = offset
        self._digests[index] = digest
