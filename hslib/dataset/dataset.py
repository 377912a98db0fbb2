"""The rows of a dataset in order, each checked."""

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import xxhash

from hslib.dataset.mask import MASK_COLUMNS
from hslib.dataset.media import MEDIA_COLUMNS
from hslib.dataset.row_check import check_row
from hslib.dataset.sample import Limits, Rejection, RowInfo, Sample, Survey
from hslib.dataset.sources import find_files, rows_of
from hslib.errors import DatasetError

_CHECKED = (
    "id",
    "input_ids",
    "attention_mask",
    "messages",
    "conversations",
    *MASK_COLUMNS,
    *MEDIA_COLUMNS,
)


@dataclass(frozen=True)
class Dataset:
    """The rows of a source (:mod:`hslib.dataset.sources`); an index is a row's 0-based number.

    Args:
        limit: only the first so many rows; 0 = all.
        mask_column: the only column that says which tokens train; "" = those that are known.
    """

    source: str | Path
    limits: Limits
    limit: int = 0
    mask_column: str = ""

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """In the order of their rows; raises :class:`DatasetError` when there are none."""
        return find_files(self.source)

    def __iter__(self) -> Iterator[Sample | Rejection]:
        """Every row in order, as a :class:`Sample` or a :class:`Rejection`.

        Raises:
            DatasetError: a file can't be read to its end.
        """
        seen: dict[str, int] = {}
        rows = rows_of(self.files, (*_CHECKED, self.mask_column))
        for place, row in itertools.islice(rows, self.limit or None):
            if isinstance(row, Rejection):
                yield row
                continue
            result = check_row(place.index, row, self.limits, self.mask_column)
            if isinstance(result, Sample):
                result = _check_duplicate(result, seen)
            if isinstance(result, Rejection):
                result = replace(result, where=str(place))
            yield result

    def survey(self) -> Survey:
        """Check every row; keeps a :class:`RowInfo` of each in memory, and no ids."""
        rows: list[RowInfo] = []
        rejections: list[Rejection] = []
        zero, columns = 0, Counter[str]()
        digest = xxhash.xxh3_128()
        for row in self:
            if isinstance(row, Rejection):
                rejections.append(row)
                continue
            digest.update(row.digest.encode())
            zero += not row.loss_mask.any()
            columns[row.mask_column] += 1
            rows.append(RowInfo(row.index, row.id, row.num_tokens, row.digest, row.mask_digest))
        total = len(rows) + len(rejections)
        if total == 0:
            raise DatasetError(
                "the dataset has no rows", path=str(self.source), fix="check the path"
            )
        end = self.limit or sys.maxsize
        return Survey(rows, rejections, total, zero, columns, digest.hexdigest(), end)


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
