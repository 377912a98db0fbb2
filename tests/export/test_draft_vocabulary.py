"""Draft vocabularies: the most frequent trained tokens, and maps that lead back to them."""

from collections import Counter

import numpy as np
import pytest

from hslib.errors import ExportError
from hslib.export.draft_vocabulary import vocabulary_map


def targets(counts: dict[int, int], draft_size: int, vocab_size: int = 10) -> list[int]:
    found = vocabulary_map(counts, draft_size, vocab_size)
    ids = np.arange(draft_size) + found.d2t
    assert (found.d2t.dtype, found.t2d.dtype) == (np.int64, np.bool_)
    assert np.flatnonzero(found.t2d).tolist() == ids.tolist()
    return [int(token) for token in ids]


def test_the_most_frequent_tokens_are_taken_and_ascend() -> None:
    assert targets({7: 5, 2: 9, 4: 1, 9: 6}, 3) == [2, 7, 9]


def test_equal_counts_are_decided_by_the_lower_id() -> None:
    assert targets({7: 1, 2: 1, 4: 1}, 2) == [2, 4]


def test_what_data_do_not_name_is_filled_with_the_lowest_ids() -> None:
    assert targets({7: 5, 1: 2}, 5) == [0, 1, 2, 3, 7]


def test_coverage_is_the_share_of_trained_tokens() -> None:
    assert vocabulary_map({7: 6, 2: 3, 4: 1}, 2, 10).coverage == pytest.approx(0.9)
    assert vocabulary_map(Counter(), 2, 10).coverage == 0.0


@pytest.mark.parametrize("size", [0, -1, 11])
def test_a_draft_size_outside_the_model_is_refused(size: int) -> None:
    with pytest.raises(ExportError, match=r"not in 1\.\.10"):
        vocabulary_map({1: 1}, size, 10)
