"""The same rows from a file, shards, a glob, a datasets folder, and the hub's cache."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from make.sources import FORMS, one_file, parquet_shards, shards, write_lines

from hslib.dataset import Dataset, Limits, absolute_source, read_rows
from hslib.errors import DatasetError

LIMITS = Limits(vocab_size=100, max_tokens=8)
ROWS = [
    {"input_ids": [n + 1, n + 2, 9], "loss_mask": [0, 1, 1], "text": f"row {n}"} for n in range(7)
]


@pytest.fixture(autouse=True)
def no_bars() -> None:
    datasets.disable_progress_bars()


def texts(source: str | Path) -> list[str]:
    return [row["text"] for _, row in read_rows(source, None) if isinstance(row, dict)]


@pytest.mark.parametrize("make", [one_file, *FORMS])
def test_every_source_gives_the_same_rows_and_digests(tmp_path: Path, make: Any) -> None:
    expected = Dataset(one_file(tmp_path / "one", ROWS), LIMITS).survey()
    (tmp_path / "many").mkdir()
    found = Dataset(make(tmp_path / "many", ROWS), LIMITS)
    assert found.survey() == expected
    assert [row.index for row in found] == list(range(7))
    assert texts(found.source) == [row["text"] for row in ROWS]


@pytest.mark.parametrize(
    ("make", "where"),
    [(shards, "1.jsonl.gz, line 2"), (parquet_shards, "-00002.parquet, row 0")],
)
def test_a_rejection_names_file_and_line_beside_the_index(
    tmp_path: Path, make: Any, where: str
) -> None:
    rejected = Dataset(make(tmp_path, ROWS), Limits(14 - 8, 8)).survey().rejections
    assert {r.index: r.where for r in rejected}[4].endswith(where)


def test_a_broken_shard_names_its_file_and_the_rows_index(tmp_path: Path) -> None:
    shards(tmp_path, ROWS)
    path = tmp_path / "b" / "1.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DatasetError, match=r"before row [3-5] of the dataset[\s\S]*1\.jsonl\.gz"):
        list(read_rows(tmp_path))


def test_files_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("part-10", "part-2", "part-1"):
        write_lines(tmp_path / f"{name}.jsonl", [{"text": name}])
    for source in (tmp_path, tmp_path / "*.jsonl"):
        assert texts(source) == ["part-1", "part-10", "part-2"]


def test_nothing_there_is_an_error_with_the_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for source in ("nothing.jsonl", "nothing-*.jsonl", "empty", "s3://bucket/rows.jsonl"):
        with pytest.raises(DatasetError, match="there is no dataset at") as caught:
            list(read_rows(source))
        assert absolute_source(source) in str(caught.value)


def test_a_path_is_the_same_from_any_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/home/me")
    texts = ("rows.jsonl", "~/rows/*.jsonl", "/a/b", "hf:owner/name:train")
    made = ["/rows.jsonl", "/home/me/rows/*.jsonl", "/a/b", "hf:owner/name:train"]
    assert [absolute_source(text) for text in texts] == made


def test_files_of_several_kinds_are_refused_and_listed(tmp_path: Path) -> None:
    shards(tmp_path, ROWS)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    for source in (tmp_path, tmp_path / "*"):
        with pytest.raises(DatasetError, match=r"several kinds: .*\.jsonl.*1 \.parquet"):
            list(read_rows(source))
    assert len(list(read_rows(tmp_path / "*.parquet"))) == 7


def test_shards_that_a_download_left_out_are_missed(tmp_path: Path) -> None:
    parquet_shards(tmp_path, ROWS)
    (tmp_path / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(DatasetError, match=r"1 of 2 files train-\*-of-00002\.parquet are there"):
        list(read_rows(tmp_path))
    assert len(list(read_rows(tmp_path / "*.parquet"))) == 3  # by consent


def test_a_folder_of_several_splits_is_none_of_them(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        write_lines(tmp_path / "data" / f"{name}.jsonl", ROWS[:1])
    with pytest.raises(DatasetError, match="several splits: test, train"):
        list(read_rows(tmp_path))
    assert len(list(read_rows(f"{tmp_path}/**/train-*"))) == 2


def test_a_datasets_folder_of_several_splits_lists_them(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "d")
    with pytest.raises(DatasetError, match=r"several splits: train, test[\s\S]*d/train"):
        list(read_rows(tmp_path / "d"))
    assert len(list(read_rows(tmp_path / "d" / "test"))) == 7


def test_json_columns_of_datasets_come_out_as_they_went_in(tmp_path: Path) -> None:
    values = [{"m": {"a": 1}}, {"m": {"b": [2, None]}}]
    kinds = datasets.Features({"m": datasets.Json()})
    datasets.Dataset.from_list(values, features=kinds).save_to_disk(tmp_path / "d")
    assert [row for _, row in read_rows(tmp_path / "d", None)] == values


# --- the hub's cache, made by hand, in a process of its own: it is chosen at import -----------

_READ = """
import sys
from hslib.dataset import Dataset, Limits
from hslib.errors import DatasetError
for source in sys.argv[1:]:
    try:
        survey = Dataset(source, Limits(100, 8)).survey()
        print(survey.num_rows, survey.digest)
    except DatasetError as error:
        print(str(error).replace("\\n", " "))
"""


def from_cache(folder: Path, *sources: str) -> list[str]:
    env = {**os.environ, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", _READ, *sources]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def cached(folder: Path, name: str) -> Path:
    """An empty snapshot in the hub's cache, as ``hf download`` makes it."""
    repository = folder / "hub" / f"datasets--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    return snapshot


def test_a_dataset_of_the_hub_is_read_from_its_cache(tmp_path: Path) -> None:
    parquet_shards(cached(tmp_path, "me/one"), ROWS)
    two = cached(tmp_path, "me/two")
    write_lines(two / "train.jsonl", ROWS)
    write_lines(two / "test.jsonl", ROWS[:2])
    (cached(tmp_path, "me/card") / "README.md").write_text("# a card")
    parquet_shards(cut := cached(tmp_path, "me/cut"), ROWS)
    (cut / "train-00000-of-00002.parquet").unlink()
    expected = Dataset(one_file(tmp_path / "one", ROWS), LIMITS).survey()
    whole = f"7 {expected.digest}"
    one, train, split, wrong, slice_, card, absent, missing = from_cache(
        tmp_path,
        "hf:me/one",
        "hf:me/two:train",
        "hf:me/two",
        "hf:me/two:validation",
        "hf:me/two:train[:3]",
        "hf:me/card",
        "hf:me/absent",
        "hf:me/cut",
    )
    assert (one, train) == (whole, whole)
    assert "several splits: train, test" in split and "hf:me/two:train" in split
    assert "datasets can't read me/two" in wrong and "'test'" in wrong
    assert "set limit" in slice_
    for lacking, name in ((card, "me/card"), (absent, "me/absent")):
        assert f"`hf download --repo-type dataset {name}`" in lacking
    assert "1 of 2 files train-*-of-00002.parquet" in missing
