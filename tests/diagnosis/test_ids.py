"""A store's ids against a dataset's, without a tokenizer: what differs, where, and the cure."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from make.stores import manifest, store_samples

from hslib import demo, diagnosis
from hslib.dataset import Sample
from hslib.diagnosis import Diagnosis
from hslib.diagnosis.ids.change import change_of, example_of, found_at
from hslib.diagnosis.ids.stored import rejected_rows
from hslib.errors import DatasetError
from hslib.job import RunRecord
from hslib.parameters import DiagnosisParameters
from hslib.store import Entry, Store, StoreWriter
from hslib.terminal import main

COUNT = 30
RNG = np.random.default_rng(5)
LENGTHS = RNG.integers(8, 40, COUNT)
ROWS = [RNG.integers(10, 500, n).tolist() for n in LENGTHS]
LIMIT = 20
Rows = list[list[int]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ids")
    return make_store(folder, ROWS)


def make_store(folder: Path, rows: Rows) -> Path:
    samples = [
        Sample(at, str(at), np.array(row, np.int32), np.ones(len(row), np.uint8))
        for at, row in enumerate(rows)
    ]
    store_samples(folder / "store", folder / "dumps", samples)
    return folder / "store"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Rows], str]:
    def write(rows: Rows) -> str:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
        return str(path)

    return write


def run(store: Path, dataset: str, **values: str) -> tuple[Diagnosis, str, bool]:
    parameters = DiagnosisParameters.from_values(
        {"store_dir": str(store), "dataset_path": dataset, **values}
    )
    found = diagnosis.run(parameters)
    text = "\n".join(diagnosis.sentences(parameters, found, []))
    return found, text, diagnosis.is_good(parameters, found, [])


def changed_ids(rows: Rows) -> Rows:
    return [[*row[:7], 501, *row[8:]] if at % 3 == 0 else row for at, row in enumerate(rows)]


def replaced(rows: Rows) -> Rows:
    return [list(range(100, 130)), *rows[1:]]


def inserted(rows: Rows) -> Rows:
    """A token after the fourth of each second row."""
    return [[*row[:4], 501, *row[4:]] if at % 2 else row for at, row in enumerate(rows)]


TOO_LONG = [at for at, row in enumerate(ROWS) if len(row) > LIMIT]
EVERY = list(range(COUNT))
CASES: dict[str, tuple[Callable[[Rows], Rows], dict[str, list[int]], str]] = {
    "changed": (
        changed_ids,
        {"other_ids": EVERY[::3]},
        f"10 of 30 rows have other ids than were stored: sample 0, position 7: stored "
        f"{ROWS[0][7]}, dataset 501; lengths equal, 1 id of {LENGTHS[0]} differs.",
    ),
    "inserted": (inserted, {"other_ids": EVERY[1::2]}, "0 of 15 have equal lengths; sample 1, "),
    "cut": (
        lambda rows: [row[:LIMIT] for row in rows],
        {"dataset_limit": TOO_LONG},
        f"each of these {len(TOO_LONG)} rows is the beginning of the stored one, and ends at 20 ",
    ),
    "two cut": (
        lambda rows: [r[:LIMIT] if at in TOO_LONG[:2] else r for at, r in enumerate(rows)],
        {"cut": TOO_LONG[:2]},
        "the dataset lacks the end in 2 rows; sample ",
    ),
    "halved": (
        lambda rows: [row[: len(row) // 2] for row in rows],
        {"cut": EVERY},
        "the dataset lacks the end in all 30 rows; sample 0, ",
    ),
    "longer": (
        lambda rows: [[*row, 5, 6] for row in rows],
        {"cut": EVERY},
        "the store lacks the end in all 30 rows; sample 0, ",
    ),
    "first": (
        lambda rows: [row[1:] for row in rows],
        {"first_token": EVERY},
        f"the dataset lacks the first token in all 30 rows; sample 0, position 0: stored "
        f"{ROWS[0][0]}, dataset {ROWS[0][1]}; stored {LENGTHS[0]} tokens, dataset {LENGTHS[0] - 1}",
    ),
    "last": (
        lambda rows: [row[:-1] for row in rows],
        {"last_token": EVERY},
        f"the dataset lacks the last token in all 30 rows; sample 0, position {LENGTHS[0] - 1}: "
        f"stored {ROWS[0][-1]}, dataset ends; ",
    ),
    "middle": (
        lambda rows: [*rows[:4], rows[4][2:-3], *rows[5:]],
        {"part": [4]},
        f"the dataset's row is tokens 2 to {LENGTHS[4] - 4} of the stored one; sample 4, ",
    ),
    "rotated": (
        lambda rows: rows[1:] + rows[:1],
        {"moved": EVERY},
        "30 of 30 rows have other ids than were stored: stored sample i is dataset row i-1 "
        "(all 30 by their ids); at the ends it goes round: sample 0 is row 29.",
    ),
    "preceded": (
        lambda rows: [[1, 2, 3], *rows],
        {"moved": EVERY},
        "stored sample i is dataset row i+1 (all 30 by their ids).",
    ),
    "two taken out": (
        lambda rows: rows[:5] + rows[6:20] + rows[21:],
        {"moved": [*range(6, 20), *range(21, 30)], "other_row": [5, 20]},
        "stored sample i is dataset row i-1 (14 by their ids); stored sample i is dataset row i-2 ",
    ),
    "reversed": (
        lambda rows: rows[::-1],
        {"reordered": EVERY},
        "each is another row of the dataset: stored sample 0 is dataset row 29; ",
    ),
    "fewer": (
        lambda rows: rows[:25],
        {"gone": [25, 26, 27, 28, 29]},
        "the dataset has no ids at row 25 (it has 25 rows), and no row has the sample's",
    ),
    "replaced": (replaced, {"other_row": [0]}, f"dataset 100; stored {LENGTHS[0]} tokens, "),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_dataset_has_in_place_of_the_stored_ids_is_named(
    name: str, store: Path, write: Callable[[Rows], str]
) -> None:
    edit, samples, words = CASES[name]
    found, text, is_good = run(store, write(edit(ROWS)))
    assert {f.code: f.samples.tolist() for f in found.verdict.findings} == samples
    assert words in text
    assert f"{sum(map(len, samples.values()))} of 30 rows have other ids than were" in text
    assert "LOG" not in text and "UNKNOWN" not in text and not is_good
    assert text.count("Cure: ") == len(samples)
    table = diagnosis.cause_table(found)
    assert table.index.tolist() == list(samples)
    assert all(table["kind"] == "dataset") and all(table["examples"])
    assert diagnosis.metrics(found, [])["samples_differing"] == sum(map(len, samples.values()))


def test_equal_rows_agree_by_their_ids_and_more_rows_are_no_difference(
    store: Path, write: Callable[[Rows], str]
) -> None:
    found, text, is_good = run(store, write([*ROWS, [1, 2, 3]]))
    assert text.startswith("All 30 compared samples agree: their stored ids are those of the")
    assert is_good and found.verdict.main == "none"


def test_a_row_that_occurs_twice_is_where_its_neighbours_are(
    tmp_path: Path, write: Callable[[Rows], str]
) -> None:
    rows = [*ROWS[:10], ROWS[2], *ROWS[10:]]
    found, text, _ = run(make_store(tmp_path, rows), write(rows[1:] + rows[:1]))
    assert found.verdict.codes == ("moved",)
    assert "(all 31 by their ids)" in text


def test_the_command_says_it_with_the_text_of_the_ids_and_exits_with_1(
    store: Path, write: Callable[[Rows], str], capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write([[*ROWS[0][:7], 12, *ROWS[0][8:]], *ROWS[1:]])
    arguments = ["diagnose", str(store), "--dataset", dataset]
    assert main([*arguments, "--tokenizer", str(demo.model_path())]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("1 of 30 rows have other ids than were stored: sample 0, position 7")
    assert ", dataset 12 ('%'); lengths equal" in printed
    assert main(["diagnose", str(store), "--dataset", write(ROWS)]) == 0


def test_a_journal_alone_tells_places_and_lengths_but_no_tokens(
    store: Path, write: Callable[[Rows], str]
) -> None:
    journal = store / "journal.jsonl"
    found, text, _ = run(journal, write(ROWS[1:] + ROWS[:1]))
    assert found.verdict.codes == ("moved",)
    found, text, _ = run(journal, write(changed_ids(ROWS)))
    assert found.verdict.codes == ("other_ids",)
    assert "their tokens can't be read: name the store" in text


def test_files_that_are_gone_leave_the_verdict_of_the_digests(
    tmp_path: Path, write: Callable[[Rows], str]
) -> None:
    store = make_store(tmp_path, ROWS[:1])
    for entry in Store(store).entries.values():
        (store / entry.file).unlink()
    found, text, _ = run(store, write([ROWS[1]]))
    assert found.verdict.codes == ("other_ids",) and "digest is of other ids" in text


def test_numbers_of_the_figures_are_the_stores_and_the_datasets(
    store: Path, write: Callable[[Rows], str]
) -> None:
    found, _, _ = run(store, write([row[1:] for row in ROWS]))
    numbers = diagnosis.sample_table(found)
    assert numbers["got"].tolist() == LENGTHS.tolist()
    assert numbers["expected"].tolist() == (LENGTHS - 1).tolist()
    assert set(numbers["cause"]) == {"first_token"}


def test_a_part_is_found_at_whole_ids_only() -> None:
    longer = np.array([0x01000000, 0x02000000, 7, 8], np.int64)
    assert found_at(longer, np.array([7, 8])) == 2
    assert found_at(longer, np.array([0x00020000])) == -1, "the bytes are there, but not as an id"


def test_an_example_names_the_first_position_and_both_lengths() -> None:
    stored, row = np.array([4, 5, 6, 7]), np.array([4, 9, 6, 8])
    assert example_of(3, stored, row, lambda number: "" if number == 9 else "x") == (
        "sample 3, position 1: stored 5 ('x'), dataset 9; lengths equal, 2 ids of 4 differ"
    )
    assert change_of(stored, row) == "other_ids"
    assert change_of(stored, np.array([4, 9, 9, 9])) == "other_row"


def test_conversations_beside_a_store_are_said_to_be_no_rows(store: Path, tmp_path: Path) -> None:
    """They are not "another dataset": no id was compared."""
    chats = tmp_path / "chats.jsonl"
    message = {"role": "user", "content": "Hi."}
    chats.write_text((json.dumps({"messages": [message]}) + "\n") * COUNT)
    with pytest.raises(DatasetError, match="no row of the dataset has input_ids") as raised:
        run(store, str(chats))
    assert f"python -m hslib rows {chats} ROWS.jsonl" in raised.value.fix


def test_another_mask_of_the_same_ids_is_a_difference(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other tokens would train, although every id agrees."""
    masks = [[1] * len(row) for row in ROWS]
    masks[2][:5] = [0] * 5
    lines = [
        json.dumps({"input_ids": row, "loss_mask": mask})
        for row, mask in zip(ROWS, masks, strict=True)
    ]
    dataset = tmp_path / "masked.jsonl"
    dataset.write_text("\n".join(lines))
    found, text, is_good = run(store, str(dataset))
    length = len(ROWS[2])
    example = (
        f"sample 2: {length} of {length} tokens train in the store, {length - 5} in the dataset; "
        "the first that differs is at position 0"
    )
    assert found.verdict.sentences()[0] == (
        f"The ids of all {COUNT} compared samples agree, but 1 have another mask: {example}."
    )
    assert [(f.code, f.samples.tolist()) for f in found.verdict.findings] == [("other_mask", [2])]
    assert "on_changed_rows = 'redo'" in text
    assert not is_good
    assert main(["diagnose", str(store), "--dataset", str(dataset)]) == 1
    assert "other_mask: 1 sample (2)" in capsys.readouterr().out


def test_rows_that_the_job_rejected_are_known_of_its_own_dataset_alone(tmp_path: Path) -> None:
    place = make_store(tmp_path, ROWS[:3])
    dataset = str(tmp_path / "rows.jsonl")
    facts = manifest(dataset_path=dataset).model_dump_json()
    (place / "manifest.json").write_text(facts)
    with StoreWriter(place, manifest(dataset_path=dataset)) as writer:
        writer.record(Entry(index=3, id="3", status="rejected", reason="out_of_vocabulary"))
    assert rejected_rows(str(place), dataset) == {3}
    assert rejected_rows(str(place), str(tmp_path / "other.jsonl")) == frozenset()
    assert rejected_rows(str(tmp_path / "job.log"), dataset) == frozenset()


def test_a_run_and_its_log_stand_for_the_store_that_the_job_filled(
    store: Path, tmp_path: Path, write: Callable[[Rows], str], capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord(
        parameters={},
        model_path="model",
        model_class="LlamaForCausalLM",
        dataset="rows.jsonl",
        store=str(store),
        states="",
        hardware="",
        versions={},
    )
    (tmp_path / "run.json").write_text(record.model_dump_json())
    (tmp_path / "extraction.log").write_text("a line of the job's log")
    for named in (tmp_path, tmp_path / "extraction.log"):
        assert main(["diagnose", str(named), "--dataset", write(changed_ids(ROWS))]) == 1
        assert "10 of 30 rows have other ids than were stored" in capsys.readouterr().out


def test_masks_are_compared_with_the_column_that_the_job_was_given(
    store: Path, tmp_path: Path
) -> None:
    lines = [
        json.dumps({"input_ids": row, "loss_mask": [0] * len(row), "mine": [1] * len(row)})
        for row in ROWS
    ]
    dataset = tmp_path / "masked.jsonl"
    dataset.write_text("\n".join(lines))
    assert not run(store, str(dataset))[2]
    assert run(store, str(dataset), mask_column="mine")[2]
