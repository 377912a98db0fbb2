"""What was made, as a person sees it: words, coloured tokens, the terminal."""

import json
import re
from pathlib import Path

import pytest
from make.chats import DAY, FAMILIES, save_tokenizer

from hslib.errors import JobError
from hslib.notebook import row_picker
from hslib.parameters import RowsParameters
from hslib.rows import Counts, Recipe, Row, RowsManifest, load_chat, make_rows, view
from hslib.terminal import main

GOOD = {"conversations": [{"from": "human", "value": "3 x 7?"}, {"from": "gpt", "value": "21."}]}
TOOL = {"conversations": [{"from": "human", "value": "u"}, {"from": "tool", "value": "x"},
                          {"from": "gpt", "value": "y"}]}  # fmt: skip


def manifest(**counts: object) -> RowsManifest:
    line = {"index": 4, "reason": "merged", "detail": "evidence", "fix": "cure"}
    return RowsManifest({}, "", "", {}, "", "", Counts(**counts), [line])  # type: ignore[arg-type]


def test_the_verdict_counts_what_was_made_and_what_was_not() -> None:
    found = manifest(
        conversations=10,
        rows=12,
        tokens=100,
        trained=25,
        longest=30,
        single_turns=5,
        rejected={"too_long": 1, "merged": 3},
    )
    said = view.sentences(found, 0.1)
    assert said[0].startswith("ROWS MADE: 12 from 10 conversations, 100 tokens, of which 25% train")
    assert said[1].startswith("In 5 of them one turn alone trains")
    assert said[2] == ("REJECTED: 4 (25.0%), more than the 10% allowed: 3 merged, 1 too_long.")
    assert not view.is_good(found, 0.24) and view.is_good(found, 0.25)
    with pytest.raises(JobError, match="more than the 10% allowed"):
        view.require_good(found, 0.1)
    table = view.rejection_table(found)
    assert table["reason"].tolist() == ["merged", "too_long"]
    assert table["evidence"].tolist() == ["evidence", "see the rejected rows' file"]


def test_no_row_is_never_good() -> None:
    found = manifest(conversations=3)
    assert view.sentences(found)[0].startswith("NO ROWS: none of 3")
    assert not view.is_good(found, 1.0)


def test_tokens_are_coloured_where_they_train_and_characters_stay_whole(tmp_path: Path) -> None:
    folder = save_tokenizer(FAMILIES["kimi_k2"], tmp_path / "m")
    chat = load_chat(Recipe(folder, date=str(DAY)))
    messages = [
        {"role": "user", "content": "雨 <b>?"},
        {"role": "assistant", "content": "雪🚀\nso"},
    ]
    (row,) = make_rows(chat, [(0, {"messages": messages})])
    assert isinstance(row, Row)
    shown = view.row_html(chat, row)
    assert "\ufffd" not in shown and "<b>" not in shown and "<style" not in shown
    spans = re.findall(
        r'<span style="background:(#\w+)[^"]*" title="([\d ]+)">([^<]*)</span>', shown
    )
    trained = [text for colour, _, text in spans if colour == "#bfe0f5"]
    assert "".join(trained) == "雪🚀↵\nso&lt;|im_end|&gt;"
    ids = [int(number) for _, title, _ in spans for number in title.split()]
    assert ids == row.input_ids.tolist()
    assert view.row_text(chat, row).endswith("<|im_middle|>«雪🚀\nso<|im_end|>»")
    assert row_picker(chat, [row]).data == shown, "headless: a still picture"


def command(tmp_path: Path, rows: list[dict[str, object]], *options: str) -> tuple[int, Path]:
    out = tmp_path / "rows.jsonl"
    source = tmp_path / "chats.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    model = str(RowsParameters().recipe.model)
    return main(["rows", str(source), str(out), "--model", model, *options]), out


def test_the_command_shows_an_example_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = command(tmp_path, [GOOD, GOOD])
    said = capsys.readouterr().out
    assert (code, out.exists()) == (0, True)
    assert "3 x 7?<|im_end|><|im_assistant|>assistant<|im_middle|>«21.<|im_end|>»" in said
    assert f"-p dataset_path {out} -p model_path" in said


def test_too_many_rejected_rows_are_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = command(tmp_path, [GOOD, TOOL])
    said = capsys.readouterr().out
    assert code == 1
    assert "1 x template: row 1: message 2: the template refuses: unknown role: tool" in said
    assert "more than the 10% allowed" in said and "next:" not in said
    assert command(tmp_path, [GOOD, TOOL], "--max-rejected-share", "0.5")[0] == 0
