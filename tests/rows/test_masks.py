"""Masks token by token: 300 generated conversations in six formats, against an own construction."""

from pathlib import Path

import pytest
from make.chats import DAY, FAMILIES, Chat, Expected, expected_rows, make_chat, save_tokenizer

from hslib.rows import Chat as Template
from hslib.rows import Recipe, Row, load_chat, make_rows

COUNT = 300


def made(template: Template, chats: list[Chat]) -> list[list[Expected]]:
    found: list[list[Expected]] = [[] for _ in chats]
    for item in make_rows(template, [(n, chat.row) for n, chat in enumerate(chats)]):
        if isinstance(item, Row):
            ids, mask = tuple(item.input_ids.tolist()), tuple(item.loss_mask.tolist())
            found[item.index].append(Expected("", item.turn, ids, mask))
        else:
            found[item.index].append(Expected(item.reason))
    return found


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(FAMILIES[request.param], tmp_path_factory.mktemp("m") / request.param)


@pytest.mark.parametrize(("train_on", "thinking"), [("all", "keep"), ("last", "drop")])
def test_masks_are_those_of_the_format(folder: Path, train_on: str, thinking: str) -> None:
    family = FAMILIES[folder.name]
    recipe = Recipe(folder, train_on=train_on, thinking=thinking, date=str(DAY))  # type: ignore[arg-type]
    template = load_chat(recipe)
    chats = [make_chat(seed, family.specials[seed % len(family.specials)]) for seed in range(COUNT)]
    right = [expected_rows(family, template.tokenizer, c, train_on, thinking) for c in chats]
    for number, (got, want) in enumerate(zip(made(template, chats), right, strict=True)):
        assert got == want, (number, chats[number].row)
    rows = [row for rows in right for row in rows]
    assert sum(not row.reason for row in rows) > 150, "most are rows"
    assert {"special_in_text", "empty_answer"} <= {row.reason for row in rows}
