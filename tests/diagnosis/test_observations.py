"""Logs with torn lines, journals, stores and dump directories as expected and got."""

import json
from pathlib import Path

import numpy as np
import pytest
from make.dumps import write_dump
from make.rows import random_sample, write_rows

from hslib import demo
from hslib.diagnosis import diagnose_counts, read_any
from hslib.diagnosis.filing.observations import UNKNOWN, read_entries, read_log
from hslib.diagnosis.rows import load_rows, text_rows
from hslib.errors import StoreError
from hslib.server.dumps import request_id
from hslib.store import Entry


def lines(*texts: str) -> str:
    return "\n".join(texts) + "\n"


def test_the_case_study_log_is_read_with_its_cut_last_line() -> None:
    seen = read_any(demo.case_study_path())
    assert seen.indices.tolist() == [81, 82, 83, 84, 85, 86, 87]
    assert seen.got.tolist() == [1283, 3563, 2759, 4710, 1, 2934, 297]
    assert seen.expected.tolist() == [4710, 2934, 297, 291, 360, 1166, UNKNOWN]
    assert seen.only_mismatches


@pytest.mark.parametrize(
    ("text", "got", "expected"),
    [
        ("sample 4: got 10 tokens, expected 20\n", 10, 20),
        ("sample 4: got 10 tokens, expected 20, truncating\n", 10, 20),
        ("sample 4: got 10 tokens, expected 20\r\n", 10, 20),
        ("sample 4: got 10 tokens, expected 47", 10, UNKNOWN),  # 4710, perhaps
        ("sample 4: got 10 tokens, expec", 10, UNKNOWN),
        ("sample 4: got 1sample 4: got 10 tokens, expected 20\n", 10, 20),
        ("sample 4: got 10 tokens, expected 47WARNING sample\n", 10, UNKNOWN),
        ("x [index=4, check='rows', expected=20, got=10, path='p']\n", 10, 20),
    ],
)
def test_a_number_counts_only_when_it_is_whole(text: str, got: int, expected: int) -> None:
    seen = read_log(text)
    assert (seen.got.tolist(), seen.expected.tolist()) == ([got], [expected])


@pytest.mark.parametrize(
    "text",
    ["", "sample 4: got 1", "sample 4: got 10", "Loaded 9 samples\n", "[83] 20 extracted (84)\n",
     "x [index=4, check='input_ids at 3', expected=20, got=10]\n"],
)  # fmt: skip
def test_what_is_no_whole_line_is_passed_over(text: str) -> None:
    assert len(read_log(text)) == 0


def test_of_several_lines_for_a_sample_the_last_counts() -> None:
    seen = read_log(
        lines("sample 4: got 10 tokens, expected 20", "sample 4: got 12 tokens, expected 20")
    )
    assert seen.got.tolist() == [12]


def test_sample_numbers_that_spread_too_far_are_refused() -> None:
    with pytest.raises(StoreError, match="spread"):
        read_log(lines("sample 4: got 1 tokens", "sample 900000000: got 1 tokens"))


def test_what_a_log_of_mismatches_leaves_out_was_right(tmp_path: Path) -> None:
    samples = [random_sample(i, n) for i, n in enumerate((5, 6, 7, 8, 9, 10))]
    rows = load_rows(write_rows(tmp_path / "rows.jsonl", samples))
    text = lines("sample 1: got 5 tokens, expected 6", "sample 4: got 8 tokens, expected 9")
    seen = read_log(text).with_rows(rows.lengths, rows.digests())
    assert seen.got.tolist() == [UNKNOWN, 5, 7, 8, 8, UNKNOWN]
    assert seen.stated.tolist() == [False, True, False, False, True, False]
    assert seen.expected.tolist() == [5, 6, 7, 8, 9, 10]


def test_a_journal_gives_lengths_of_failures_and_digests_of_what_is_stored(tmp_path: Path) -> None:
    sample = random_sample(0, 6)
    reason = "dump x is not sample 1's states: rows [index=1, check='rows', expected=9, got=4]"
    entries = [
        Entry(index=0, id="a", status="ok", num_tokens=6, digest=sample.digest),
        Entry(index=1, id="b", status="failed", num_tokens=9, reason=reason),
        Entry(index=2, id="c", status="failed", num_tokens=3, reason="no answer"),
        Entry(index=3, id="d", status="rejected", reason="empty"),
    ]
    seen = read_entries(entries, "journal")
    assert seen.expected.tolist() == [6, 9, 3]
    assert seen.got.tolist() == [6, 4, UNKNOWN]
    rows = load_rows(write_rows(tmp_path / "rows.jsonl", [sample]))
    assert not seen.with_rows(rows.lengths, rows.digests()).mismatched[0]
    other = load_rows(write_rows(tmp_path / "other.jsonl", [random_sample(0, 6, seed=1)]))
    assert seen.with_rows(other.lengths, other.digests()).mismatched[0], "equal length, other ids"


def test_dumps_of_a_counter_are_proven_by_their_ids_to_be_shifted(tmp_path: Path) -> None:
    samples = [random_sample(i, 8) for i in range(12)]  # of equal length: only ids can tell
    rows = load_rows(write_rows(tmp_path / "rows.jsonl", samples))
    stream = [*samples[:6], random_sample(99, 3), *samples[6:11]]
    for number, sample in enumerate(stream):
        write_dump(tmp_path / "dumps", f"req_{number + 40}", sample)
    found = diagnose_counts(read_any(tmp_path / "dumps"), rows)
    assert found.filing.by_ids
    assert found.verdict.codes == ("shift", "foreign")
    assert found.filing.holds[7:12].tolist() == [6, 7, 8, 9, 10]
    assert found.verdict.findings[1].samples.tolist() == [6]
    assert "proven by the ids' digests" in found.verdict.findings[0].evidence


def test_a_counter_that_began_elsewhere_is_no_fault(tmp_path: Path) -> None:
    samples = [random_sample(i, 8) for i in range(9)]
    rows = load_rows(write_rows(tmp_path / "rows.jsonl", samples))
    for number, sample in enumerate([random_sample(98, 3), *samples]):
        write_dump(tmp_path / "dumps", f"req_{number}", sample)
    assert diagnose_counts(read_any(tmp_path / "dumps"), rows).verdict.main == "none"


def test_the_kits_dumps_say_whose_they_are(tmp_path: Path) -> None:
    samples = [random_sample(i, 8) for i in range(4)]
    rows = load_rows(write_rows(tmp_path / "rows.jsonl", samples))
    for sample, states in zip(samples, [*samples[1:], samples[0]], strict=True):
        write_dump(tmp_path / "dumps", request_id(sample, 1), states)
    seen = read_any(tmp_path / "dumps")
    assert seen.has_places
    wrong = seen.with_rows(rows.lengths, rows.digests())
    assert wrong.mismatched.all()


def test_a_folder_that_is_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no log, journal, store or dump directory"):
        read_any(tmp_path)


def test_rows_without_ids_have_no_length(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"input_ids": [1, 2]}, {"text": "x"}, {"input_ids": [2**40]}, {"input_ids": [5]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_rows(path)
    assert loaded.lengths.tolist() == [2, -1, -1, 1]
    assert loaded.row(3).tolist() == [5]
    assert np.array_equal(loaded.row(1), [])


def test_text_rows_know_where_the_prompt_ends(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1], "text": "x y z"}
    path.write_text(json.dumps(row) + "\n" + json.dumps({"input_ids": [1]}) + "\n")
    (found,), left_out = text_rows(path, limit=0)
    assert (found.index, found.ids, found.text, found.prompt_tokens) == (0, (1, 2, 3), "x y z", 2)
    assert left_out == []
