"""What a part of a job says of the whole, and when it must not be believed."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from make.rows import write_rows
from make.stores import made_up_rows, write_store

from hslib.errors import StoreError
from hslib.stats.sizes import Outlook, longest_allowed, outlook, size_facts
from hslib.store import size_words

# The case study, from its log and its figures: hidden 7168, 4 states in bf16.
CASE_BYTES_PER_TOKEN = 4 * 7168 * 2
CASE_ROWS = 37_312
CASE_EXPECTED = (4710, 2934, 297, 291, 360, 1166)  # tokens of the rows that its warnings name


def test_the_case_studys_two_estimates_are_explained() -> None:
    """84 samples and 0.3 GB say 133 GB; the rows' own tokens say 3.5 TB."""
    tokens_seen = 0.3e9 / CASE_BYTES_PER_TOKEN
    seen = np.random.default_rng(0).multinomial(round(tokens_seen), np.full(84, 1 / 84))
    all_tokens = round(np.mean(CASE_EXPECTED) * CASE_ROWS)
    found = Outlook(seen.tolist(), CASE_BYTES_PER_TOKEN, CASE_ROWS, all_tokens)
    assert size_words(found.from_rows) == "133 GB"
    assert found.from_tokens is not None
    assert size_words(found.from_tokens) == "3.48 TB"
    assert [size_words(n) for n in (2e12, 35e9, 350e6, 999.9e3)] == [
        "2.00 TB",
        "35.0 GB",
        "350 MB",
        "1,000 kB",
    ]
    assert not found.agree
    sentence = found.sentence()
    assert "from 84 rows of 62 tokens on average, 37,312 rows take 133 GB" in sentence
    assert "From the tokens of all rows, they take 3.48 TB" in sentence
    assert "26.1 times those of the part" in sentence
    assert sentence.endswith("Trust the tokens.")


def test_rows_that_are_no_fair_draw_are_called_so() -> None:
    lengths = np.sort(np.random.default_rng(2).lognormal(6.5, 1.0, 5000))
    found = Outlook(lengths[:500].tolist(), 1.0, 5000, int(lengths.sum()))
    assert not found.agree
    assert "no fair sample" in found.sentence()


def test_a_fair_draw_needs_no_warning() -> None:
    lengths = np.random.default_rng(3).lognormal(6.5, 1.0, 1000)
    found = Outlook(lengths[:400].tolist(), 1.0, 1000, int(lengths.sum()))
    assert found.agree
    assert "Trust" not in found.sentence()
    assert "fair sample" in Outlook(lengths[:50].tolist(), 1.0, 1000).sentence()


def test_nothing_stored_is_an_error(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", made_up_rows(1))
    store.entries.clear()
    with pytest.raises(StoreError, match="run notebook 03"):
        outlook(store)


def test_a_partial_store_is_extrapolated_by_the_rows_of_its_dataset(tmp_path: Path) -> None:
    rows = made_up_rows(40)
    store = write_store(tmp_path / "store", rows[:15])
    dataset = write_rows(tmp_path / "rows.jsonl", [sample for sample, _ in rows])
    found = outlook(store, 15, str(dataset))
    assert found.about == "25 rows are still to come"
    whole = write_store(tmp_path / "whole", rows)
    size = sum(entry.size_bytes for entry in whole.entries.values())
    assert found.from_tokens == pytest.approx(size, rel=0.01)


def test_a_partial_store_is_extrapolated_by_the_rows_that_its_job_was_asked_for(
    tmp_path: Path,
) -> None:
    found = outlook(write_store(tmp_path / "store", made_up_rows(15)), 40)
    assert found.about == "25 rows are still to come"
    assert (found.rows, found.from_tokens) == (40, None)


def test_a_complete_store_tells_what_its_first_third_would_have_said(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", made_up_rows(30))
    found = outlook(store)
    assert found.sentence().startswith(
        "The store is complete. Its first third would have predicted: from "
    )
    assert (len(found.lengths_seen), found.rows) == (10, 30)
    size = sum(entry.size_bytes for entry in store.entries.values())
    assert found.from_tokens == pytest.approx(size, rel=0.01)


def test_facts_are_sums_of_the_journal(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", made_up_rows(2))
    for index, tokens in enumerate((100, 300)):
        store.entries[index] = dataclasses.replace(
            store.entries[index], num_tokens=tokens, size_bytes=tokens * 57_344
        )
    assert size_facts(store) == {
        "samples": "2",
        "tokens": "400",
        "size": "22.9 MB",
        "bytes per token": "57,344",
        "a sample, on average": "11.5 MB, 200 tokens",
        "encoding": "plain: bfloat16 as it is",
    }


def test_the_cut_is_the_servers_limit_where_the_manifest_knows_it(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", made_up_rows(1))
    assert longest_allowed(store) == 0
    store.manifest.server["max_req_input_len"] = 4090
    assert longest_allowed(store) == 4090
