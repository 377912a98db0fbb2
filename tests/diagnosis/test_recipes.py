"""A dataset's ids made again in every way: which way they were made, and what differs."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make.stores import model_store

from hslib import demo, diagnosis
from hslib.dataset import Sample
from hslib.diagnosis.tokens.recipes import Compared, reference
from hslib.diagnosis.tokens.tokenizers import Rendering, Vocabulary, load_vocabulary
from hslib.errors import DatasetError, RequestError
from hslib.parameters import DiagnosisParameters
from hslib.server import launch as server
from hslib.terminal import main

GENERATION = Rendering(add_generation_prompt=True)


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
    if dataset:
        values = {"dataset_path": dataset, "tokenizer_path": str(demo.model_path()), **values}
    return diagnosis.run_tokens(DiagnosisParameters.from_values(values))


def main_of(compared: list[Compared]) -> Compared:
    found = reference(compared)
    assert found is not None
    return found


def test_the_demos_ids_are_its_tokenizers_own() -> None:
    compared = compare("", sample_limit=40)
    assert main_of(compared).differing == ()
    words = diagnosis.token_sentences(compared)
    assert words == [
        "TOKENS AGREE: the dataset's ids of all 40 rows are those made here with the tokenizer "
        "(plain: template or text, and nothing else)."
    ]
    other = next(c for c in compared if c.got.recipe == GENERATION)
    assert {code: len(rows) for code, rows in other.by_cause.items()} == {"generation_prompt": 40}


def test_the_way_that_ids_were_made_is_found(tmp_path: Path, vocabulary: Vocabulary) -> None:
    rows = demo_rows(12)
    for row in rows:
        row["input_ids"] = vocabulary.encode_chat(row["messages"], GENERATION)
    compared = compare(write(tmp_path / "rows.jsonl", rows))
    words = "\n".join(diagnosis.token_sentences(compared))
    assert (
        "TOKENS DIFFER in 12 of 12 rows: the dataset's ids are not those made here with the"
        in words
    )
    assert "are those made here with the tokenizer (+generation prompt)." in words
    assert "Cure: tokenize the dataset again" in words


def test_mixed_causes_are_reported_as_a_mix(tmp_path: Path, vocabulary: Vocabulary) -> None:
    rows = demo_rows(40)
    other = {**{i: rows[i]["input_ids"] for i in range(40)}}
    for i in range(10):
        rows[i]["input_ids"] = vocabulary.encode_chat(rows[i]["messages"], GENERATION)
    for i in range(10, 20):
        rows[i]["input_ids"] = rows[i]["input_ids"][:-4]
    rows[20]["input_ids"], rows[21]["input_ids"] = other[21], other[20]
    end = vocabulary.encode("<|im_end|>", Rendering())[0]
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


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (lambda ids: ids[1:], "first_token", "row 0 (line 1): dataset lacks the first token, "),
        (
            lambda ids: ids[:-1],
            "eos",
            "row 0 (line 1): dataset ends with 0 EOS, tokenizer with 1; ",
        ),
        (lambda ids: [ids[0], 99, *ids[2:]], "other_ids", " 1 of 20 ids differ, the lengths are"),
        (
            lambda ids: [ids[0], 7, *ids[2:]],
            "other_ids",
            " 1 of 20 ids differ, the lengths are equal; ",
        ),
    ],
)
def test_what_is_no_cut_and_no_template_is_not_called_that(
    edit: Callable[[list[int]], list[int]], code: str, words: str, tmp_path: Path
) -> None:
    rows = [{**row, "input_ids": edit(row["input_ids"])} for row in demo_rows(9)]
    compared = compare(write(tmp_path / "rows.jsonl", rows))
    assert list(main_of(compared).by_cause) == [code]
    text = "\n".join(diagnosis.token_sentences(compared))
    assert words in text
    assert re.search(r"at position \d+, after '.*': dataset .*, tokenizer ", text)
    assert "expected" not in text and " got " not in text and "max_length" not in text


def test_plain_text_rows_are_compared_too(tmp_path: Path, vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("How much is 8 x 10?", Rendering())
    compared = compare(write(tmp_path / "rows.jsonl", [{"text": "How much is 8 x 10?",
                                                        "input_ids": [1, *ids]}]))  # fmt: skip
    assert main_of(compared).differing[0].codes == ("bos",)
    assert [c.got.recipe for c in compared if c.got.recipe != Rendering()] == [
        Rendering(add_special_tokens=True)
    ]


def test_rows_without_text_say_so(tmp_path: Path) -> None:
    compared = compare(write(tmp_path / "rows.jsonl", [{"input_ids": [1, 2]}]))
    assert (
        "no row holds input_ids beside messages or text" in diagnosis.token_sentences(compared)[0]
    )


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
        compare(str(demo.dataset_path()), sample_limit=1, server_url="http://127.0.0.1:9")


CALL = {"type": "function", "function": {"name": "mul", "arguments": '{"a": 3}'}}
CHATS: list[dict[str, Any]] = [
    {"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Yes."}]},
    {"messages": [{"role": "user", "content": "Hi."}, {"role": "tool", "content": "{}"},
                  {"role": "assistant", "content": "Yes."}]},
    {"messages": [{"role": "wizard", "content": "Hi."}]},
    {"messages": [{"role": "user", "content": "Hi."},
                  {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
]  # fmt: skip


def test_a_row_that_cannot_be_rendered_is_named_and_the_rest_is_compared(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    read = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes."}]
    ids = vocabulary.encode_chat(read, Rendering())
    compared = compare(
        write(tmp_path / "rows.jsonl", [{**chat, "input_ids": ids} for chat in CHATS])
    )
    main = main_of(compared)
    assert main.comparisons[0].agrees, "ShareGPT is understood"
    assert [c.index for c in main.comparisons] == [0, 3]
    words = "\n".join(diagnosis.token_sentences(compared))
    assert "NOT COMPARED, template_refuses: 1 row (1)." in words
    assert "row 1 (line 2): the chat template refuses the row: unknown role: tool" in words
    assert "NOT COMPARED, unknown_role: 1 row (2)." in words
    assert "Cure: " in words
    assert diagnosis.pair_table([main]).iloc[0]["left out"] == 2


def test_a_folder_without_a_template_leaves_every_row_out_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo.model_path(), folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    compared = compare(write(tmp_path / "x.jsonl", demo_rows(3)), tokenizer_path=str(folder))
    words = diagnosis.token_sentences(compared)
    assert words[0] == "TOKENIZATION NOT COMPARED: no row could be rendered."
    assert "no_template: 3 rows (0-2)" in words[1]
    assert "put chat_template.jinja" in words[1]


def test_a_tokenizer_file_of_a_newer_library_is_called_that(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo.model_path(), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"] = {"type": "OfTomorrow", "vocab": {}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DatasetError, match="a newer library wrote"):
        load_vocabulary(folder)


def test_a_store_alone_is_compared_with_its_own_rows_and_never_with_the_demos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "input_ids": row["input_ids"][::-1]} for row in demo_rows(5)]
    dataset = write(tmp_path / "rows.jsonl", rows)
    samples = [
        Sample(
            at,
            row["id"],
            np.array(row["input_ids"], np.int32),
            np.array(row["loss_mask"], np.uint8),
        )
        for at, row in enumerate(rows)
    ]
    model_store(tmp_path / "store", demo.model_path(), samples, (2, 5, 7), dataset_path=dataset)
    assert main(["diagnose", str(tmp_path / "store")]) == 1
    printed = capsys.readouterr().out
    assert "All 5 compared samples agree" in printed
    assert "TOKENS DIFFER in 5 of 5 rows" in printed
    Path(dataset).unlink()
    assert main(["diagnose", str(tmp_path / "store")]) == 0
    printed = capsys.readouterr().out
    assert "The dataset that the store's manifest names is not there" in printed
    assert "TOKENIZATION NOT COMPARED: --dataset not known" in printed


def test_what_is_not_given_is_not_compared(tmp_path: Path) -> None:
    parameters = DiagnosisParameters(dataset_path=write(tmp_path / "x.jsonl", demo_rows(2)))
    found, compared = diagnosis.run(parameters), diagnosis.run_tokens(parameters)
    assert compared == []
    assert diagnosis.sentences(parameters, found, compared) == [
        "",
        "SAMPLES NOT COMPARED: no log and no store is named (log_path, store_dir).",
        "TOKENIZATION NOT COMPARED: tokenizer_path not known; name it.",
    ]
    assert not diagnosis.is_good(parameters, found, compared)
    assert diagnosis.pair_table(compared).empty
    assert "No row was compared" in diagnosis.explorer(compared).data


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
    exact = [c.got.name for c in compared if c.expected.name == "dataset" and not c.differing]
    assert exact == ["tokenizer +generation prompt", "server +generation prompt"]
    local_and_server = next(c for c in compared if c.name == "tokenizer plain / server plain")
    assert local_and_server.differing == ()
