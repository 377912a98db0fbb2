"""The rows of a dataset in order, counted."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hslib.dataset import Dataset, Limits, Rejection, Sample, count_reasons

LIMITS = Limits(vocab_size=100, max_tokens=8)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def rows_of(path: Path) -> list[Any]:
    return list(Dataset(path, LIMITS))


def test_index_is_the_line_number_whatever_the_lines_hold(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    inside = json.dumps({"input_ids": [3], "text": "a\u2028b"}, ensure_ascii=False)
    path.write_bytes(
        b"\xef\xbb\xbf"
        + b'{"input_ids": [1]}\r\n'
        + b"\n"
        + inside.encode()
        + b"\n[1, 2]\n"
        + b'{"input_ids": [4]}'
    )
    first, blank, third, array, last = rows_of(path)
    assert [r.index for r in (first, blank, third, array, last)] == [0, 1, 2, 3, 4]
    assert (blank.reason, blank.where) == ("blank", "rows.jsonl, line 2")
    assert array.reason == "not_json"
    assert [r.input_ids.tolist() for r in (first, third, last)] == [[1], [3], [4]]


def test_duplicate_ids_name_the_first_row(tmp_path: Path) -> None:
    row = {"id": "a/../\u00fc", "input_ids": [1]}
    first, second = rows_of(write(tmp_path / "rows.jsonl", row, row))
    assert first.id == "a/../\u00fc"
    assert (second.reason, second.index) == ("duplicate_id", 1)
    assert "row 0" in second.detail


def test_a_row_without_an_id_does_not_collide_with_anothers(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"input_ids": [1]}, {"id": 0, "input_ids": [2]})
    assert all(isinstance(row, Sample) for row in rows_of(path))


def test_the_survey_counts_what_the_job_must_know(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        {"input_ids": [1, 2], "loss_mask": [0, 0]},
        {"input_ids": [3]},
        {"input_ids": [100]},
        {"input_ids": [4, 5, 6], "labels": [-100, 5, 6]},
    )
    survey = Dataset(path, LIMITS).survey()
    assert [(row.index, row.num_tokens) for row in survey.rows] == [(0, 2), (1, 1), (3, 3)]
    (rejected,) = survey.rejections
    assert (rejected.index, rejected.where) == (2, "rows.jsonl, line 3")
    assert (survey.num_rows, survey.zero_masks, survey.num_tokens) == (4, 1, 6)
    assert survey.mask_columns == {"loss_mask": 1, "": 1, "labels": 1}
    assert survey.missing_masks == 1


def test_reasons_are_counted_the_most_frequent_first() -> None:
    reasons = ("too_long", "padded", "padded")
    assert count_reasons(Rejection(0, "0", r, "", "") for r in reasons) == "2 padded, 1 too_long"


def test_limit_takes_the_first_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"input_ids": [1]}, {"input_ids": [2]})
    assert len(list(Dataset(path, LIMITS, limit=1))) == 1


def test_mask_digest_tells_masks_apart() -> None:
    ids = np.array([1, 2], np.int32)
    ones, zeros = Sample(0, "a", ids, np.ones(2, np.uint8)), Sample(0, "a", ids, np.zeros(2, "u1"))
    assert ones.digest == zeros.digest
    assert ones.mask_digest != zeros.mask_digest


def test_half_a_character_and_nan_where_nobody_reads_them_reject_no_row(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        {"input_ids": [4, 5], "text": "\ud83d hi"},
        {"input_ids": [6, 7], "score": float("nan")},
        {"input_ids": [6, 7], "loss_mask": [1, float("nan")]},
    )
    first, second, bad = rows_of(path)
    assert isinstance(first, Sample) and isinstance(second, Sample)
    assert bad.reason == "mask_values"
