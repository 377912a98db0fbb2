"""Templates that mark what is generated: the masks are transformers' own."""

from pathlib import Path
from typing import Any

import pytest
from make.chats import FAMILIES, make_chat, save_tokenizer

from hslib.rows import Chat, Conversation, Recipe, Row, load_chat, make_rows, read_conversation

MARKED = {"chatml_marked": "qwen3", "llama3_marked": "llama3"}


@pytest.fixture(scope="module", params=MARKED)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = FAMILIES[MARKED[request.param]]
    return save_tokenizer(family, tmp_path_factory.mktemp("m") / "model", request.param)


def transformers_mask(chat: Chat, row: dict[str, Any]) -> tuple[list[int], list[int]]:
    read = read_conversation(0, row)
    assert isinstance(read, Conversation)
    found = chat.tokenizer.apply_chat_template(
        list(read.messages),
        tools=list(read.tools) or None,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return found["input_ids"], found["assistant_masks"]


def test_masks_are_transformers(folder: Path) -> None:
    chat = load_chat(Recipe(folder))
    assert chat.has_markers
    rows = [make_chat(seed).row for seed in range(300)]
    made = make_rows(chat, list(enumerate(rows)))
    good = [item for item in made if isinstance(item, Row)]
    assert len(good) > 100
    for row in good:
        assert (row.input_ids.tolist(), row.loss_mask.tolist()) == transformers_mask(
            chat, rows[row.index]
        )
    reasons = {item.reason for item in made if not isinstance(item, Row)}
    assert reasons <= {"merged", "empty_answer", "left_out"}


def test_of_the_last_answer_only_its_own_marks_train(folder: Path) -> None:
    row = {"messages": [{"role": r, "content": c} for r, c in zip("uauaua", "abcdef", strict=True)]}
    names = {"u": "user", "a": "assistant"}
    row["messages"] = [{**m, "role": names[m["role"]]} for m in row["messages"]]
    made = [make_rows(load_chat(Recipe(folder, train_on=on)), [(0, row)])[0]  # type: ignore[arg-type]
            for on in ("all", "last")]  # fmt: skip
    assert all(isinstance(item, Row) for item in made)
    every, last = (item.loss_mask for item in made if isinstance(item, Row))
    assert (every.sum(), last.sum()) == (6, 2), "a letter and the end of the turn, each"
    assert last[: len(last) // 2].sum() == 0


def test_a_token_over_the_mark_trains_with_transformers_and_is_rejected_here(
    tmp_path: Path,
) -> None:
    """``assistant``, a line break of the template and one of the answer are one token."""
    folder = save_tokenizer(FAMILIES["qwen3"], tmp_path / "m", "chatml_marked")
    chat = load_chat(Recipe(folder))
    row = {"messages": [{"role": "user", "content": "u"},
                        {"role": "assistant", "content": "\n\nso"}]}  # fmt: skip
    (made,) = make_rows(chat, [(0, row)])
    assert not isinstance(made, Row)
    assert made.reason == "merged"
    ids, mask = transformers_mask(chat, row)
    trained = chat.tokenizer.decode([n for n, trains in zip(ids, mask, strict=True) if trains])
    assert trained.startswith("\n\n\n"), "the template's line break trains with it"
