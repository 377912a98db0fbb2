"""A dataset's ids made again in every way: which way they were made, and what differs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hslib import demo, diagnosis
from hslib.diagnosis.tokens.recipes import Compared, reference
from hslib.diagnosis.tokens.tokenizers import Recipe, Vocabulary, load_vocabulary
from hslib.errors import DatasetError, RequestError
from hslib.parameters import DiagnosisParameters
from hslib.server import launch as server

GENERATION = Recipe(add_generation_prompt=True)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(demo.model_path())


def demo_rows(count: int) -> list[dict[str, Any]]:
    lines = demo.dataset_path().read_text().splitlines()[:count]
    return [json.loads(line) for line in lines]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def compare(dataset: str, **values: Any) -> list[Compared]:
    return diagnosis.run_tokens(
        DiagnosisParameters.from_values({"dataset_path": dataset, **values})
    )


def main_of(compared: list[Compared]) -> Compared:
    found = reference(compared)
    assert found is not None
    return found


def test_the_demos_ids_are_its_tokenizers_own() -> None:
    compared = compare("", sample_limit=40)
    assert main_of(compared).differing == ()
    words = diagnosis.token_sentences(compared)
    assert words == ["TOKENS AGREE: all 40 rows' stored ids are what local plain makes."]
    other = next(c for c in compared if c.got.recipe == GENERATION)
    assert {code: len(rows) for code, rows in other.by_cause.items()} == {"generation_prompt": 40}


def test_the_way_that_ids_were_made_is_found(tmp_path: Path, vocabulary: Vocabulary) -> None:
    rows = demo_rows(12)
    for row in rows:
        row["input_ids"] = vocabulary.encode_chat(row["messages"], GENERATION)
    compared = compare(write(tmp_path / "rows.jsonl", rows))
    words = "\n".join(diagnosis.token_sentences(compared))
    assert "TOKENS DIFFER in 12 of 12 rows from local plain." in words
    assert "The stored ids are exactly what local +generation prompt makes" in words
    assert "Cure: tokenize the dataset again" in words


def test_mixed_causes_are_reported_as_a_mix(tmp_path: Path, vocabulary: Vocabulary) -> None:
    rows = demo_rows(40)
    other = {**{i: rows[i]["input_ids"] for i in range(40)}}
    for i in range(10):
        rows[i]["input_ids"] = vocabulary.encode_chat(rows[i]["messages"], GENERATION)
    for i in range(10, 20):
        rows[i]["input_ids"] = rows[i]["input_ids"][:-4]
    rows[20]["input_ids"], rows[21]["input_ids"] = other[21], other[20]
    end = vocabulary.encode("<|im_end|>", Recipe())[0]
    for i in range(22, 25):  # of equal count
        rows[i]["input_ids"] = [2 if n == end else n for n in rows[i]["input_ids"]]
    main = main_of(compare(write(tmp_path / "rows.jsonl", rows)))
    counts = {code: [c.index for c in found] for code, found in main.by_cause.items()}
    assert counts == {
        "generation_prompt": list(range(10)),
        "truncated": list(range(10, 20)),
        "row_order": [20, 21],
        "special_ids": [22, 23, 24],
    }
    assert main.equal_counts >= 3
    line = diagnosis.pair_table([main]).iloc[0]
    assert line["equal ids"] == 15


def test_plain_text_rows_are_compared_too(tmp_path: Path, vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("How much is 8 x 10?", Recipe())
    compared = compare(write(tmp_path / "rows.jsonl", [{"text": "How much is 8 x 10?",
                                                        "input_ids": [1, *ids]}]))  # fmt: skip
    assert main_of(compared).differing[0].codes == ("bos",)
    assert [c.got.recipe for c in compared if c.got.recipe != Recipe()] == [
        Recipe(add_special_tokens=True)
    ]


def test_rows_without_text_say_so(tmp_path: Path) -> None:
    compared = compare(write(tmp_path / "rows.jsonl", [{"input_ids": [1, 2]}]))
    assert "No row holds messages or text" in diagnosis.token_sentences(compared)[0]


def test_the_worst_row_is_the_one_with_most_other_ids(tmp_path: Path) -> None:
    rows = demo_rows(6)
    rows[2]["input_ids"] = rows[2]["input_ids"][:-9]
    rows[4]["input_ids"] = rows[4]["input_ids"][:-30]
    main = main_of(compare(write(tmp_path / "rows.jsonl", rows)))
    worst = main.worst()
    assert worst is not None and worst.index == 4
    assert main.worst("bos") is None


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no tokenizer can be loaded"):
        load_vocabulary(tmp_path)
    with pytest.raises(DatasetError, match="no tokenizer in Python"):
        load_vocabulary(demo.model_path(), slow=True)


def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(RequestError, match="does not answer"):
        compare("", sample_limit=1, server_url="http://127.0.0.1:9")


@pytest.mark.slow
def test_a_real_servers_own_tokenisation_tells_the_template_variant(
    tmp_path: Path,
    start_server: Callable[..., server.ServerState],
    vocabulary: Vocabulary,
) -> None:
    """The dataset was tokenized with a generation prompt; the server is asked, not the folder."""
    state = start_server(demo.model_path(), layers="auto")

    rows = demo_rows(8)
    for row in rows:
        row["input_ids"] = vocabulary.encode_chat(row["messages"], GENERATION)
    compared = compare(write(tmp_path / "rows.jsonl", rows), server_url=state.url)
    main = main_of(compared)
    assert main.got.name == "server plain"
    assert {code: len(found) for code, found in main.by_cause.items()} == {"generation_prompt": 8}
    exact = [c.got.name for c in compared if c.expected.name == "stored" and not c.differing]
    assert exact == ["local +generation prompt", "server +generation prompt"]
    local_and_server = next(c for c in compared if c.name == "local plain / server plain")
    assert local_and_server.differing == ()
