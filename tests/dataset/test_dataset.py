"""Rows in, samples out, every bad row named."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard

from hslib.dataset import Dataset, Limits, Rejection, Sample, check_row, read_rows
from hslib.errors import DatasetError

LIMITS = Limits(vocab_size=100, max_tokens=8)


def rejection(row: dict[str, Any]) -> Rejection:
    result = check_row(4, row, LIMITS)
    assert isinstance(result, Rejection), result
    assert (result.index, bool(result.fix)) == (4, True)
    return result


@pytest.mark.parametrize(
    ("row", "reason", "evidence"),
    [
        ({"messages": []}, "no_ids", "messages"),
        ({"input_ids": None}, "no_ids", "input_ids"),
        ({"input_ids": []}, "empty", "[]"),
        ({"input_ids": [1, 2.0]}, "not_integers", "2.0"),
        ({"input_ids": [1, True]}, "not_integers", "True"),
        ({"input_ids": [[1, 2]]}, "not_integers", "[[1, 2]]"),
        ({"input_ids": "1 2"}, "not_integers", "'1 2'"),
        ({"input_ids": {"input_ids": [1]}}, "not_integers", "input_ids"),
        ({"input_ids": [1, -1]}, "out_of_vocabulary", "id -1 at position 1"),
        ({"input_ids": [1, 100]}, "out_of_vocabulary", "id 100 at position 1"),
        ({"input_ids": [2**40]}, "out_of_vocabulary", str(2**40)),
        ({"input_ids": [1] * 9}, "too_long", "9 tokens, the limit is 8"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "mask_length", "1 entries, input_ids 2"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "mask_values", "[1, 2]"),
        ({"input_ids": [1, 2], "loss_mask": [1, 0.5]}, "mask_values", "0.5"),
        ({"input_ids": [1, 2], "loss_mask": [[1], [0]]}, "mask_values", "[[1], [0]]"),
    ],
)
def test_a_bad_row_is_rejected_with_reason_evidence_and_fix(
    row: dict[str, Any], reason: str, evidence: str
) -> None:
    found = rejection(row)
    assert found.reason == reason
    assert evidence in found.detail


def test_a_row_at_the_limits_is_a_sample() -> None:
    sample = check_row(0, {"input_ids": [0, 99] * 4, "loss_mask": [0, True] * 4}, LIMITS)
    assert isinstance(sample, Sample)
    assert sample.input_ids.tolist() == [0, 99] * 4
    assert sample.loss_mask.tolist() == [0, 1] * 4
    assert (sample.id, sample.has_mask) == ("0", True)


def test_attention_mask_is_not_taken_for_a_loss_mask() -> None:
    sample = check_row(0, {"input_ids": [1, 2], "attention_mask": [1, 0]}, LIMITS)
    assert isinstance(sample, Sample)
    assert sample.loss_mask.tolist() == [1, 1]
    assert not sample.has_mask


def test_the_digest_is_xxh3_128_of_little_endian_int32() -> None:
    sample = check_row(0, {"input_ids": [1, 99]}, LIMITS)
    assert isinstance(sample, Sample)
    assert sample.digest == xxhash.xxh3_128_hexdigest(b"\x01\0\0\0\x63\0\0\0")


def test_equal_count_and_other_ids_have_another_digest() -> None:
    first, second = (check_row(0, {"input_ids": ids}, LIMITS) for ids in ([1, 2], [2, 1]))
    assert isinstance(first, Sample)
    assert isinstance(second, Sample)
    assert first.digest != second.digest


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
    assert blank.reason == "blank"
    assert array.reason == "not_json"
    assert [r.input_ids.tolist() for r in (first, third, last)] == [[1], [3], [4]]


def test_a_torn_last_line_is_rejected_and_said_to_be_torn(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"input_ids": [1]}\n{"input_ids": [1, 2')
    *_, torn = rows_of(path)
    assert torn.reason == "not_json"
    assert "torn" in torn.detail


def test_duplicate_ids_name_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a/../\u00fc", "input_ids": [1]}\n' * 2)
    first, second = rows_of(path)
    assert first.id == "a/../\u00fc"
    assert (second.reason, second.index) == ("duplicate_id", 1)
    assert "row 0" in second.detail


TEXT = b'{"input_ids": [1]}\n{"input_ids": [2]}\n'
LINES = TEXT.splitlines(keepends=True)


def _parquet(path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = {"input_ids": [[1], [2]], "loss_mask": [[1], [0]], "other": ["x", "y"]}
    pyarrow.parquet.write_table(pyarrow.table(rows), path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("plain.jsonl", lambda p: p.write_bytes(TEXT)),
        ("rows.jsonl.gz", lambda p: p.write_bytes(gzip.compress(TEXT))),
        ("rows.jsonl.zst", lambda p: p.write_bytes(zstandard.compress(TEXT))),
        ("two-frames.zst", lambda p: p.write_bytes(b"".join(map(zstandard.compress, LINES)))),
        ("wrong-suffix.jsonl", lambda p: p.write_bytes(gzip.compress(TEXT))),
        ("rows.parquet", _parquet),
    ],
)  # fmt: skip
def test_formats_are_told_by_content(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name)
    assert [row.input_ids.tolist() for row in rows_of(tmp_path / name)] == [[1], [2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>404</html>", "HTML page"),
        (b"\n  <html>", "HTML page"),
        (gzip.compress(TEXT * 50)[:-12], "breaks off after row"),
        (zstandard.compress(TEXT * 5000)[:-4], "breaks off after row"),
        (b"\x28\xb5\x2f\xfd and no frame", "breaks off after row -1"),
        (b"PAR1 and nothing more", "not a whole Parquet file"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_an_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message) as caught:
        rows_of(path)
    assert "rows.jsonl" in str(caught.value)


def test_a_missing_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nothing\.jsonl"):
        list(read_rows(tmp_path / "nothing.jsonl"))


def test_the_survey_counts_what_the_job_must_know(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {"input_ids": [1, 2], "loss_mask": [0, 0]},
        {"input_ids": [3]},
        {"input_ids": [100]},
        {"input_ids": [4, 5, 6], "loss_mask": [0, 1, 1]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    survey = Dataset(path, LIMITS).survey()
    assert [(row.index, row.num_tokens) for row in survey.rows] == [(0, 2), (1, 1), (3, 3)]
    assert [r.index for r in survey.rejections] == [2]
    assert (survey.num_rows, survey.zero_masks, survey.missing_masks) == (4, 1, 1)
    assert survey.num_tokens == 6


def test_limit_takes_the_first_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(TEXT)
    assert len(list(Dataset(path, LIMITS, limit=1))) == 1


def test_mask_digest_tells_masks_apart() -> None:
    ids = np.array([1, 2], np.int32)
    ones, zeros = Sample(0, "a", ids, np.ones(2, np.uint8)), Sample(0, "a", ids, np.zeros(2, "u1"))
    assert ones.digest == zeros.digest
    assert ones.mask_digest != zeros.mask_digest


def test_zstd_lines_are_split_on_line_feeds_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.zst"
    rows = [b'{"input_ids": [1], "t": "a\\rb"}\r\n', b'{"input_ids": [2]}\n', b'{"input_ids": [3]}']
    path.write_bytes(b"".join(map(zstandard.compress, rows)))
    assert [(r.index, r.input_ids.tolist()) for r in rows_of(path)] == [
        (0, [1]),
        (1, [2]),
        (2, [3]),
    ]


def test_a_row_without_an_id_does_not_collide_with_anothers(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input_ids": [1]}\n{"id": 0, "input_ids": [2]}\n')
    assert all(isinstance(row, Sample) for row in rows_of(path))
