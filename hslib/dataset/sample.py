"""What a dataset's rows become: samples fit to be extracted, or rejections with their reasons."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import xxhash


@dataclass(frozen=True)
class Limits:
    """What a row must fit: ids in ``0 .. vocab_size-1``, at most ``max_tokens`` tokens.

    ``placeholders``: ids that stand for images and the like, with their names in the config.
    """

    vocab_size: int
    max_tokens: int
    placeholders: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Sample:
    """A row that is fit to be extracted. ``input_ids`` int32 [T], ``loss_mask`` uint8 [T].

    ``mask_column``: the column that the mask was taken from; "" = there was none, all ones.
    """

    index: int
    id: str
    input_ids: np.ndarray
    loss_mask: np.ndarray
    mask_column: str = "loss_mask"
    has_id: bool = True  # else ``id`` is the index

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @cached_property
    def digest(self) -> str:
        """xxh3-128 (32 hex digits) of the ids as little-endian int32."""
        return xxhash.xxh3_128_hexdigest(self.input_ids.astype("<i4", copy=False).data)

    @cached_property
    def mask_digest(self) -> str:
        """xxh3-64 (16 hex digits) of the loss mask's bytes."""
        return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(self.loss_mask).data)


@dataclass(frozen=True)
class Rejection:
    """A row that is never sent: the reason's code, the evidence, and the cure."""

    index: int
    id: str
    reason: str
    detail: str
    fix: str
    where: str = ""  # file and line


class RowFault(NamedTuple):
    """Why a row is rejected."""

    reason: str
    detail: str
    fix: str


@dataclass(frozen=True, slots=True)
class RowInfo:
    """What a survey keeps of a good row; the ids are read again when it is sent."""

    index: int
    id: str
    num_tokens: int
    digest: str
    mask_digest: str


@dataclass(frozen=True)
class Survey:
    """One pass over the whole dataset."""

    rows: list[RowInfo]
    rejections: list[Rejection]
    num_rows: int
    zero_masks: int  # good rows whose mask is all zero: no token of them is trained on
    mask_columns: Mapping[str, int]  # good rows by the column of their mask; "" = none, all ones
    digest: str  # xxh3-128 over the rows' digests in order
    end: int  # the first index that was not read: the limit, else sys.maxsize

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def missing_masks(self) -> int:
        """Good rows of which no column says what trains."""
        return self.mask_columns.get("", 0)


def count_reasons(rejections: Iterable[Rejection]) -> str:
    """``"17 padded, 2 too_long"``; "" for none."""
    counts = Counter(rejection.reason for rejection in rejections)
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())


def first_of_each(rejections: Iterable[Rejection]) -> list[Rejection]:
    """The first rejection of each reason, in :func:`count_reasons`' order."""
    listed = list(rejections)
    first = {one.reason: one for one in reversed(listed)}
    return [first[reason] for reason, _count in Counter(r.reason for r in listed).most_common()]
