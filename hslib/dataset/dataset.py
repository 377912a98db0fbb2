"""The rows of a dataset in order, each checked.

An index is the 0-based row number. JSON lines are split on ``\n`` only: a U+2028 inside a string
or a CRLF shifts no index.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from hslib.dataset.files import read_rows
from hslib.dataset.row_check import check_row
from hslib.dataset.sample import Limits, Rejection, RowInfo, Sample, Survey
from hslib.errors import DatasetError


@dataclass(frozen=True)
class Dataset:
    """A JSONL or Parquet file; gzip and zstd are recognised by content, not by suffix.

    Args:
        limit: only the first so many rows; 0 = all.
    """

    path: Path
    limits: Limits
    limit: int = 0

    def __iter__(self) -> Iterator[Sample | Rejection]:
        """Every row in order, as a :class:`Sample` or a :class:`Rejection`.

        Raises:
            DatasetError: the file can't be read to its end.
        """
        seen: dict[str, int] = {}
        for index, row in read_rows(self.path):
            if self.limit and index >= self.limit:
                return
            result = row if isinstance(row, Rejection) else check_row(index, row, self.limits)
            if isinstance(result, Sample):
                result = _check_duplicate(result, seen)
            yield result

    def survey(self) -> Survey:
        """Check every row; keeps a :class:`RowInfo` of each in memory, and no ids."""
        rows: list[RowInfo] = []
        rejections: list[Rejection] = []
        zero = missing = 0
        digest = xxhash.xxh3_128()
        for row in self:
            if isinstance(row, Rejection):
                rejections.append(row)
                continue
            digest.update(row.digest.encode())
            zero += not row.loss_mask.any()
            missing += not row.has_mask
            rows.append(RowInfo(row.index, row.id, row.num_tokens, row.digest, row.mask_digest))
        total = len(rows) + len(rejections)
        if total == 0:
            raise DatasetError("the dataset has no rows", path=str(self.path), fix="check the path")
        end = self.limit or sys.maxsize
        return Survey(rows, rejections, total, zero, missing, digest.hexdigest(), end)


def _check_duplicate(sample: Sample, seen: dict[str, int]) -> Sample | Rejection:
    if not sample.has_id:
        return sample
    first = seen.setdefault(sample.id, sample.index)
    if first == sample.index:
        return sample
    return Rejection(
        sample.index,
        sample.id,
        "duplicate_id",
        f"row {first} has the id {sample.id!r} too",
        "give every row its own id, or none",
    )
